"""Logprobs of the whole distribution when vLLM (0.32, 0.33) samples from a part of it.

With `logprobs_mode=processed_logprobs` vLLM returns logprobs after temperature, top-p and top-k.
The trainer computes the whole distribution, so our replacements return the logprobs after the
temperature but before tokens are excluded. `raw_logprobs` would be the same only at temperature 1.

`tests/conformance/test_vllm_filter.py` fails if a new vLLM version works differently.
"""

from typing import Any

import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
from vllm.v1.worker.gpu.sample.sampler import Sampler

stock_forward = TopKTopPSampler.forward_native
stock_sample_random = Sampler._sample_random


def install() -> None:
    """Replace the stock methods of both of vLLM's model runners with ours."""
    TopKTopPSampler.forward_native = forward
    Sampler._sample_random = sample_random


def whole_logprobs(
    sampler: TopKTopPSampler, logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the sampler's logits or logprobs before `k` and `p` exclude tokens.

    None: the sampler returns neither, or no token is excluded.
    """
    if k is None and p is None:
        return None
    if sampler.logprobs_mode == "processed_logits":
        return logits.clone()
    if sampler.logprobs_mode == "processed_logprobs":
        return logits.log_softmax(dim=-1, dtype=torch.float32)
    return None


def forward(
    self: TopKTopPSampler,
    logits: torch.Tensor,
    generators: dict[int, Any],
    k: torch.Tensor | None,
    p: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sample as vLLM's first model runner does, see the module.

    Args:
        self: vLLM's sampler.
        logits: [rows, vocabulary] after the temperature; may be changed.
        generators: By row, of requests with a seed.
        k: [rows] top-k; None: no row has one.
        p: [rows] top-p; None: no row has one.
    """
    whole = whole_logprobs(self, logits, k, p)
    tokens, shown = stock_forward(self, logits, generators, k, p)
    return tokens, shown if whole is None else whole


def sample_random(
    self: Sampler,
    processed_logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    idx_mapping_np: Any,
    pos: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    *further: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample as vLLM's second model runner does, see the module; it computes logprobs from logits.

    Args:
        self: vLLM's sampler.
        processed_logits: [rows, vocabulary] after the temperature; may be changed.
        expanded_idx_mapping: Passed on, like the next two.
        idx_mapping_np: See above.
        pos: See above.
        top_k: [rows] top-k; None: no row has one.
        top_p: [rows] top-p; None: no row has one.
        *further: Passed on: `use_fused_sampler`, since 0.33 after `has_topp_only_rows`.
    """
    whole = processed_logits
    if top_k is not None or top_p is not None:
        whole = processed_logits.clone()
    tokens, _ = stock_sample_random(
        self,
        processed_logits,
        expanded_idx_mapping,
        idx_mapping_np,
        pos,
        top_k,
        top_p,
        *further,
    )
    return tokens, whole
