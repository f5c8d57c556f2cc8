"""What is ours inside vLLM's CPU build (0.32): LoRA side by side and a finite KV cache.

Each replaces one stock method; `tests/conformance/test_vllm_cpu.py` compares it with the stock one
and fails when a new vLLM works in another way."""

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
"""For which one product with the zeros of `_join` takes less time than one for each slice."""
_KEPT_SETS = 8
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
    """Replace what is not finite by zero on its way into the cache.

    The attention reads whole blocks and gives what lies behind a sequence's end a weight of zero.
    Zero times NaN is NaN: the blocks of a sequence that overflowed would poison whoever gets them
    next, also with another adapter. The cached prefixes themselves are never shared: vLLM keys them
    by the adapter's name and path, and ours are never used twice. A sequence that overflowed still
    ends in logprobs that are not finite: its hidden states stay as they are."""
    finite = (torch.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0) for one in (key, value))
    _stock_update(self, layer, *finite, kv_cache, slot_mapping)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which adapters a batch has, worked out once for all layers."""

    slots: tuple[int, ...]
    """Ascending; those that no row uses are left out."""
    others: torch.Tensor | None
    """[tokens, 1, slots, 1], true where the row is not this slot's; None where all rows are the
    same one's.
    """


def update_metadata(
    self: PunicaWrapperCPU,
    mapping: object,
    lora_index_to_id: list[int | None],
    *sizes: int,
    **kwargs: object,
) -> None:
    """Note which row is whose, as vLLM does before a forward pass, and what `add_lora_linear` needs
    of it.
    """
    stock_update_metadata(self, mapping, lora_index_to_id, *sizes, **kwargs)
    # [tokens], the slot of each row; negative for rows without an adapter.
    indices = self.token_lora_indices
    slots = [slot for slot in indices.unique().tolist() if slot >= 0]
    others = indices.unsqueeze(1) != torch.tensor(slots, dtype=indices.dtype)
    self.rows = _Rows(tuple(slots), others[:, None, :, None] if others.any() else None)


def activate_adapter(self: LoRAModelManager, lora_id: int) -> bool:
    """Copy an adapter into a slot, as vLLM does; weights that were joined before are forgotten."""
    was_copied = stock_activate_adapter(self, lora_id)
    if was_copied:
        for wrapper in self.punica_wrapper_mapping.values():
            wrapper.joined = {}
    return was_copied


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
    """Add each row's LoRA product to `y` in place, by few matrix products for all adapters and
    slices of a layer.

    The stock op copies a weight matrix per token (`weights[token_indices]`), which costs far more
    than the product itself. A batch holds few adapters of small rank, so every row is multiplied
    with all of them side by side, and what belongs to another adapter than the row's own is set to
    zero in between. Slots that no row uses are left out. In the others B must be finite, as
    `check_adapter` makes sure: zero times infinity would reach other rows."""
    if self.no_lora or not self.rows.slots or not len(x):
        return
    y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    # Of this wrapper's own; made by the first batch.
    kept = self.__dict__.setdefault("joined", {})
    if (layers := kept.get(self.rows.slots)) is None:
        if len(kept) >= _KEPT_SETS:
            del kept[next(iter(kept))]
        layers = kept[self.rows.slots] = {}
    # The stacks live as long as their layer.
    if (joined := layers.get(id(lora_a_stacked))) is None:
        joined = layers[id(lora_a_stacked)] = _join(
            lora_a_stacked, lora_b_stacked, output_slices, self.rows.slots
        )
    down, whole, ups = joined
    low = x.to(down.dtype) @ down
    if self.rows.others is not None:
        low.view(len(x), len(ups), len(self.rows.slots), -1).masked_fill_(
            self.rows.others[: len(x)], 0
        )
    if y.dtype != down.dtype:
        y += (low @ whole).mul_(scale).to(y.dtype)
    elif len(x) < _FEW_ROWS:
        y.addmm_(low, whole, alpha=scale)
    else:
        for up, part, target in zip(
            ups, low.chunk(len(ups), 1), y.split(output_slices, 1), strict=True
        ):
            target.addmm_(part, up, alpha=scale)


def _join(
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    output_slices: tuple[int, ...],
    slots: tuple[int, ...],
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return [hidden_in, slices · slots · rank], [slices · slots · rank, sum(output_slices)], and
    its parts by slice.

    The second is zero where a row's slice is not the column's.
    """
    used = list(slots)
    down = torch.cat([lora_a[used].flatten(0, 2) for lora_a in lora_a_stacked])
    ups = [
        lora_b[used, 0, :width].transpose(1, 2).flatten(0, 1)
        for lora_b, width in zip(lora_b_stacked, output_slices, strict=True)
    ]
    return down.t().contiguous(), torch.block_diag(*ups), ups
