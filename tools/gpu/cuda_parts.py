"""Call A, second half: the parts of the trainer that take a different code path on CUDA.

python -m gpu.cuda_parts NAME cuda|cpu OUT.json     # rewritten after every part
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench.training_rows import made_rows, micro_batches_of, with_adapter
from gpu.random_model import dtype_for, random_model
from hanabi_grpo.training.checkpoint import OptimizerState
from hanabi_grpo.training.model import output_head
from hanabi_grpo.training.model.forward import reply_law
from hanabi_grpo.training.model.output_head import in_float32

_PROMPT_TOKENS = 156
_REPLY_TOKENS = 100
_ROW_TOKENS = {"cuda": (2048, 8192, 14336), "cpu": (512, 1024)}
"""Lengths of the conversations of the mismatch check, by device."""
_GROUPED_HEADS_TOKENS = {"cuda": (2048, 8192), "cpu": (512,)}
"""The same with the kernel that the check avoids, which holds tokens × tokens scores per head."""
_HEAD_TOKENS = 8192
_UPDATES = 2
"""Optimizer updates before its state is saved."""
_GIB = 2**30


def mismatch_check(model: Any, device: str) -> dict[str, Any]:
    """Return seconds and peak memory of the mismatch check's pass, by tokens of a conversation."""
    results: dict[str, Any] = {}
    for precision in ("highest", "high"):
        for tokens in _ROW_TOKENS[device]:
            with _float32_products(precision):
                results[f"{tokens} tokens, {precision}"] = _measure(
                    partial(_float32_pass, model, tokens), device
                )
    with patch.object(output_head, "_without_grouped_heads", contextlib.nullcontext):
        for tokens in _GROUPED_HEADS_TOKENS[device]:
            results[f"{tokens} tokens, grouped heads"] = _measure(
                partial(_float32_pass, model, tokens), device
            )
    return results


def rounding(model: Any, device: str) -> dict[str, float]:
    """Return the gap between the check's logprobs in TensorFloat-32 and in float32, in nats."""
    tokens = min(_ROW_TOKENS[device])
    with _float32_products("highest"):
        exact = _float32_pass(model, tokens)
    with _float32_products("high"):
        rounded = _float32_pass(model, tokens)
    gap = (rounded - exact).abs()
    return {"mean": float(gap.mean()), "largest": float(gap.max())}


def head(model: Any, device: str) -> dict[str, Any]:
    """Return seconds of the output head in float32, and the largest difference of its logits."""
    layer = model.get_output_embeddings()
    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(
        _HEAD_TOKENS, layer.in_features, device=device, generator=generator
    ).bfloat16()
    ids = torch.arange(_HEAD_TOKENS, device=device)[:, None] % layer.out_features
    results: dict[str, Any] = {}
    logps = {}
    for precision in ("highest", "high"):
        with _float32_products(precision), torch.no_grad():
            results[precision] = _measure(
                lambda: output_head.chosen_logps(layer, hidden, ids), device
            )
            logps[precision] = output_head.chosen_logps(layer, hidden, ids)
    results["largest difference, nats"] = float((logps["high"] - logps["highest"]).abs().max())
    return results


def optimizer(_: Any, device: str) -> dict[str, Any]:
    """Return whether a fused optimizer continues from its saved state as if it had not stopped."""
    weights = {}
    for is_resumed in (False, True):
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(64, 64, device=device))
        adam = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
        for update in range(_UPDATES + 1):
            if is_resumed and update == _UPDATES:
                saved = OptimizerState({"weight": parameter}, adam).collect()
                adam = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
                OptimizerState({"weight": parameter}, adam).restore(saved)
            parameter.grad = torch.full_like(parameter, 0.1 * (update + 1))
            adam.step()
        weights[is_resumed] = parameter.detach().cpu()
    return {
        "resumed equals not resumed": bool(torch.equal(weights[False], weights[True])),
        "device of the step counter": str(adam.state[parameter]["step"].device),
    }


PARTS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    "optimizer": optimizer,
    "head": head,
    "mismatch check": mismatch_check,
    "rounding of TensorFloat-32, nats": rounding,
}


def measure_parts(name: str, device: str, out: Path) -> dict[str, Any]:
    """Measure every part; if one fails, its error takes the place of the result.

    Args:
        name: The model, a key of `random_model.ARCHITECTURES`.
        device: "cuda" or "cpu".
        out: Rewritten after each part, so that an interrupted call leaves the finished parts.
    """

    def make() -> Any:
        return random_model(name, device, dtype=dtype_for(device))

    model = with_adapter(make, device)
    results: dict[str, Any] = {"model": name}
    for title, part in PARTS.items():
        try:
            results[title] = part(model, device)
        except (RuntimeError, AssertionError, ValueError) as error:
            results[title] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


@contextlib.contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _float32_pass(model: Any, tokens: int) -> torch.Tensor:
    """Return the logprobs of the replies of one conversation, as the mismatch check computes."""
    turns = tokens // (_PROMPT_TOKENS + _REPLY_TOKENS)
    rows = made_rows(num_games=1, turns=turns, prompt=_PROMPT_TOKENS, reply=_REPLY_TOKENS, seed=0)
    [batch] = micro_batches_of(rows, tokens, model.device)
    with in_float32(model):
        law = reply_law(
            model.base_model, model, batch.ids, batch.reply_mask, 1.0, batch.tree, ceiling=20.0
        )
    return law.logprobs


def _measure(work: Callable[[], object], device: str) -> dict[str, float | None]:
    """Return the seconds and the peak memory of a second call, beyond what was held before."""
    has_gpu = device == "cuda"
    work()
    if has_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    started = time.perf_counter()
    work()
    if has_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = (torch.cuda.max_memory_allocated() - held) / _GIB if has_gpu else None
    return {"seconds": seconds, "peak GiB": peak}


if __name__ == "__main__":
    measure_parts(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
