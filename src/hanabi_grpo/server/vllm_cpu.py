"""What is ours inside vLLM's CPU build (0.32): LoRA side by side, readers that do not spin, a finite KV cache.

Each replaces one stock method; `tests/conformance/test_vllm_cpu.py` compares it with the stock one and fails when a new
vLLM works in another way.
"""

import time

import torch
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

stock_wait = SpinCondition.wait
stock_add_lora_linear = PunicaWrapperCPU.add_lora_linear
_stock_update = CPUAttentionBackendImpl.do_kv_cache_update
_LOOK_MS = 2


def install() -> None:
    """Replace the stock methods by ours."""
    SpinCondition.wait = wait
    PunicaWrapperCPU.add_lora_linear = add_lora_linear
    CPUAttentionBackendImpl.do_kv_cache_update = _update


def wait(self: SpinCondition, timeout_ms: int | None = None) -> None:
    """Wait for a message of another of vLLM's processes.

    The stock reader spins for a second after the last message before it waits to be woken, on the cores that compute.
    This one waits to be woken at once. A notification that follows another one within a millisecond or so may be lost
    (ZeroMQ drops what a socket of one message has no room for), so in that second it also looks by itself, a few
    hundred times.
    """
    last_read = self.last_read
    if time.monotonic() <= last_read + self.busy_loop_s:
        timeout_ms = _LOOK_MS
    # The stock method waits at once when the last read was long ago.
    self.last_read = float("-inf")
    try:
        stock_wait(self, timeout_ms=timeout_ms)
    finally:
        self.last_read = last_read


def _update(
    self: CPUAttentionBackendImpl,
    layer: torch.nn.Module,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Replace what is not finite by zero on its way into the cache.

    The attention reads whole blocks and gives what lies behind a sequence's end a weight of zero. Zero times NaN is
    NaN: the blocks of a sequence that overflowed would poison whoever gets them next, also with another adapter. The
    cached prefixes themselves are never shared: vLLM keys them by the adapter's name and path, and ours are never used
    twice. A sequence that overflowed still ends in logprobs that are not finite: its hidden states stay as they are.
    """
    finite = (torch.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0) for one in (key, value))
    _stock_update(self, layer, *finite, kv_cache, slot_mapping)


def add_lora_linear(
    self: PunicaWrapperCPU,
    y: torch.Tensor,  # [tokens, sum(output_slices)]
    x: torch.Tensor,  # [tokens, hidden_in]
    lora_a_stacked: tuple[torch.Tensor, ...],  # per slice [slots, 1, rank, hidden_in]
    lora_b_stacked: tuple[torch.Tensor, ...],  # per slice [slots, 1, slice width, rank]
    scale: float,  # on the product; PEFT's alpha / rank is already inside B
    output_slices: tuple[int, ...],
    *,
    buffer: tuple[torch.Tensor, ...] | None = None,
    **kwargs: object,
) -> None:
    """Add each row's LoRA product to `y` in place, by two matrix products for all adapters of a batch.

    The stock op copies a weight matrix per token (`weights[token_indices]`), which costs far more than the product
    itself. A batch holds few adapters of small rank, so every row is multiplied with all of them side by side, and
    what belongs to another adapter than the row's own is set to zero in between. Slots that no row uses are left out.
    In the others B must be finite, as `check_adapter` makes sure: zero times infinity would reach other rows.
    """
    if self.no_lora:
        return
    y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    # [tokens], the slot of each row; negative for rows without an adapter.
    indices = self.token_lora_indices[: x.shape[0]]
    if not len(indices):
        return
    first, last = (max(int(bound), 0) for bound in torch.aminmax(indices))
    others = indices.unsqueeze(1) != torch.arange(first, last + 1, device=indices.device)
    unused = others.all(0)
    if unused.all():
        return
    # Neighbouring slots are a view of the stack; only where one between them is not in use are the others copied.
    slots: slice | torch.Tensor = slice(first, last + 1)
    if unused.any():
        others, slots = others[:, ~unused], torch.nonzero(~unused).squeeze(1) + first
    others = others.unsqueeze(2)
    start = 0
    for lora_a, lora_b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
        rank = lora_a.shape[2]
        down = lora_a[slots].reshape(-1, x.shape[1])
        up = lora_b[slots, 0, :width].transpose(1, 2).reshape(-1, width)
        low = (x.to(down.dtype) @ down.t()).view(len(x), -1, rank).masked_fill_(others, 0).view(len(x), -1)
        target = y[:, start : start + width]
        if target.dtype == up.dtype:
            target.addmm_(low, up, alpha=scale)
        else:
            target += (low @ up).mul_(scale).to(y.dtype)
        start += width
