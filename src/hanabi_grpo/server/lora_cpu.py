"""LoRA on vLLM's CPU build, two matrix products per layer for all adapters of a batch.

The stock op copies a weight matrix per token (`weights[token_indices]`), which costs far more than the product itself.
A batch holds few adapters of small rank, so every row is multiplied with all of them side by side, and what belongs to
another adapter than the row's own is set to zero in between: no row is gathered or scattered.
Installed over `PunicaWrapperCPU.add_lora_linear`; `tests/conformance/test_lora_cpu.py` compares it with the
stock op and fails when a new vLLM changes the signature.
"""

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

stock_add_lora_linear = PunicaWrapperCPU.add_lora_linear


def install() -> None:
    """Replace the stock method by ours."""
    PunicaWrapperCPU.add_lora_linear = _add_lora_linear


def _add_lora_linear(
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
    if self.no_lora:
        return
    y_rows, x_rows = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    add_side_by_side(y_rows, x_rows, lora_a_stacked, lora_b_stacked, scale, output_slices, self.token_lora_indices)


def add_side_by_side(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    indices: torch.Tensor,
) -> None:
    """Add each row's LoRA product to `y` in place.

    Slots that no row uses are left out. In those that are used, B must be finite, as `check_adapter` makes sure: zero
    times infinity would reach the rows of other adapters.

    Args:
        y: [tokens, sum(output_slices)].
        x: [tokens, hidden_in].
        lora_a_stacked: Per slice [slots, 1, rank, hidden_in].
        lora_b_stacked: Per slice [slots, 1, slice width, rank].
        scale: Factor on the product; PEFT's alpha / rank is already inside B.
        output_slices: Width of each slice of `y`.
        indices: [tokens], the slot of each row; negative for rows without an adapter.
    """
    indices = indices[: x.shape[0]]
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
