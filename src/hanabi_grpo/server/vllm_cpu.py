"""Our replacements inside vLLM's CPU build (0.32): LoRA side by side and a finite KV cache.

Each replaces one stock method; `tests/conformance/test_vllm_cpu.py` compares it with the stock one
and fails when a new vLLM works in another way.
"""

from dataclasses import dataclass

import torch
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

stock_add_lora_linear = PunicaWrapperCPU.add_lora_linear
stock_update_metadata = PunicaWrapperCPU.update_metadata
stock_activate_adapter = LoRAModelManager.activate_adapter
_stock_update = CPUAttentionBackendImpl.do_kv_cache_update

_FEW_ROWS = 64
"""Rows up to which one product with the zeros of `_join` is faster than one per slice."""
_MAX_SLOT_SETS = 8
"""Sets of slots whose joined weights are kept: a batch has the players that are to act in it."""


def install() -> None:
    """Replace the stock methods by ours."""
    LoRAModelManager.activate_adapter = activate_adapter
    PunicaWrapperCPU.rows = _Rows((), None)
    PunicaWrapperCPU.update_metadata = update_metadata
    PunicaWrapperCPU.add_lora_linear = add_lora_linear
    CPUAttentionBackendImpl.do_kv_cache_update = _update


def _update(
    self: CPUAttentionBackendImpl,
    layer: torch.nn.Module,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Replace values that are not finite by zero on their way into the cache.

    The attention reads whole blocks and gives what lies behind a sequence's end a weight of zero.
    Zero times NaN is NaN: the blocks of a sequence that overflowed would poison the sequence that
    gets them next, also one with another adapter. The cached prefixes themselves are never shared:
    vLLM keys them by the adapter's name and path, and ours are never used twice. A sequence that
    overflowed still ends in logprobs that are not finite: its hidden states stay as they are.
    """
    finite_key = torch.nan_to_num(key, nan=0.0, posinf=0.0, neginf=0.0)
    finite_value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
    _stock_update(self, layer, finite_key, finite_value, kv_cache, slot_mapping)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which adapters a batch has, worked out once for all layers."""

    slots: tuple[int, ...]
    """Ascending; those that no row uses are left out."""
    others: torch.Tensor | None
    """[tokens, 1, slots, 1], true where the slot is not the row's; None when all rows share one."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """The LoRA weights of one layer, of some slots, side by side."""

    down: torch.Tensor
    """[hidden_in, slices · slots · rank]."""
    up: torch.Tensor
    """[slices · slots · rank, sum(output_slices)], zero where a row's slice is not the column's."""
    up_slices: list[torch.Tensor]
    """The blocks of `up`: per slice [slots · rank, slice width]."""


def update_metadata(
    self: PunicaWrapperCPU,
    mapping: object,
    lora_index_to_id: list[int | None],
    *sizes: int,
    **kwargs: object,
) -> None:
    """Note each row's adapter, as vLLM does before a forward pass, for `add_lora_linear`.

    Args:
        self: vLLM's wrapper.
        mapping: vLLM's mapping of rows to adapters.
        lora_index_to_id: The adapter in each slot.
        sizes: Passed on.
        kwargs: Passed on.
    """
    stock_update_metadata(self, mapping, lora_index_to_id, *sizes, **kwargs)
    # [tokens], the slot of each row; negative for rows without an adapter.
    indices = self.token_lora_indices
    slots = [slot for slot in indices.unique().tolist() if slot >= 0]
    others = indices.unsqueeze(1) != torch.tensor(slots, dtype=indices.dtype)
    self.rows = _Rows(tuple(slots), others[:, None, :, None] if others.any() else None)


def activate_adapter(self: LoRAModelManager, lora_id: int) -> bool:
    """Copy an adapter into a slot, as vLLM does, and forget the weights joined before."""
    was_copied = stock_activate_adapter(self, lora_id)
    if was_copied:
        for wrapper in self.punica_wrapper_mapping.values():
            wrapper.joined = {}
    return was_copied


def add_lora_linear(
    self: PunicaWrapperCPU,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    *,
    buffer: tuple[torch.Tensor, ...] | None = None,
    **kwargs: object,
) -> None:
    """Add each row's LoRA product to `y` in place.

    Few matrix products do it for all adapters and slices of a layer. The stock op copies a weight
    matrix per token (`weights[token_indices]`), which costs far more than the product itself. A
    batch holds few adapters of small rank, so every row is multiplied with all of them side by
    side, and what belongs to another adapter than the row's own is set to zero in between. Slots
    that no row uses are left out. In the others B must be finite, as `check_adapter` makes sure:
    zero times infinity would reach other rows.

    Args:
        self: vLLM's wrapper.
        y: [tokens, sum(output_slices)], the layer's output.
        x: [tokens, hidden_in], the layer's input.
        lora_a_stacked: Per slice [slots, 1, rank, hidden_in].
        lora_b_stacked: Per slice [slots, 1, slice width, rank].
        scale: Factor on the product; PEFT's alpha / rank is already inside B.
        output_slices: Width of each slice.
        buffer: Not used.
        kwargs: Not used.
    """
    if self.no_lora or not self.rows.slots or not len(x):
        return
    y = y.view(-1, y.shape[-1])
    x = x.view(-1, x.shape[-1])
    joined = _joined_weights(self, lora_a_stacked, lora_b_stacked, output_slices)
    low = x.to(joined.down.dtype) @ joined.down
    if self.rows.others is not None:
        num_slots = len(self.rows.slots)
        by_slot = low.view(len(x), len(output_slices), num_slots, -1)
        by_slot.masked_fill_(self.rows.others[: len(x)], 0)
    if y.dtype != joined.down.dtype:
        y += (low @ joined.up).mul_(scale).to(y.dtype)
    elif len(x) < _FEW_ROWS:
        y.addmm_(low, joined.up, alpha=scale)
    else:
        low_slices = low.chunk(len(output_slices), 1)
        y_slices = y.split(output_slices, 1)
        for up, low_slice, y_slice in zip(joined.up_slices, low_slices, y_slices, strict=True):
            y_slice.addmm_(low_slice, up, alpha=scale)


def _joined_weights(
    wrapper: PunicaWrapperCPU,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
) -> _Joined:
    """Return a layer's joined weights for the slots of the batch, made once for each set of slots.

    Args:
        wrapper: Keeps what was joined, until an adapter is copied into a slot.
        lora_a_stacked: As for `add_lora_linear`.
        lora_b_stacked: As for `add_lora_linear`.
        output_slices: Width of each slice.
    """
    # An attribute of this wrapper, made by the first batch: slots to layer to weights.
    by_slots = wrapper.__dict__.setdefault("joined", {})
    slots = wrapper.rows.slots
    layers = by_slots.get(slots)
    if layers is None:
        if len(by_slots) >= _MAX_SLOT_SETS:
            oldest = next(iter(by_slots))
            del by_slots[oldest]
        layers = by_slots[slots] = {}
    # The stacks live as long as their layer, so their identity names it.
    layer = id(lora_a_stacked)
    joined = layers.get(layer)
    if joined is None:
        joined = layers[layer] = _join(lora_a_stacked, lora_b_stacked, output_slices, slots)
    return joined


def _join(
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
    slots: tuple[int, ...],
) -> _Joined:
    used = list(slots)
    down = torch.cat([lora_a[used].flatten(0, 2) for lora_a in lora_a_stacked])
    ups = []
    for lora_b, width in zip(lora_b_stacked, output_slices, strict=True):
        # [slots, slice width, rank] -> [slots · rank, slice width]
        ups.append(lora_b[used, 0, :width].transpose(1, 2).flatten(0, 1))
    return _Joined(down=down.t().contiguous(), up=torch.block_diag(*ups), up_slices=ups)
