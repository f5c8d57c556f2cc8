"""Only finite keys and values enter the KV cache, on vLLM's CPU build.

Its attention reads whole blocks and gives what lies behind a sequence's end a weight of zero. Zero times NaN is NaN:
the blocks of a sequence that overflowed would poison whoever gets them next, also with another adapter. The cached
prefixes themselves are never shared: vLLM keys them by the adapter's name and path, and ours are never used twice.

Installed over `CPUAttentionBackendImpl.do_kv_cache_update` (vLLM 0.32). A sequence that overflowed still ends in
logprobs that are not finite: they come from its hidden states, which stay as they are.
"""

import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

_stock_update = CPUAttentionBackendImpl.do_kv_cache_update


def install() -> None:
    """Replace what is not finite by zero on its way into the cache."""
    CPUAttentionBackendImpl.do_kv_cache_update = _update


def _update(
    self: CPUAttentionBackendImpl,
    layer: torch.nn.Module,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    finite = (torch.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0) for one in (key, value))
    _stock_update(self, layer, *finite, kv_cache, slot_mapping)
