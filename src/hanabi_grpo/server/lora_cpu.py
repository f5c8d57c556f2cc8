"""LoRA on vLLM's CPU build, one matrix product per adapter.

The stock op copies a weight matrix per token (`weights[token_indices]`), which costs far more than the
product itself. A batch holds few adapters, so the rows are grouped by adapter and each group is one product.
Installed over `PunicaWrapperCPU.add_lora_linear`; `tests/conformance/test_lora_cpu.py` compares it with the
stock op and fails when a new vLLM changes the signature.
"""

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

stock_add_lora_linear = PunicaWrapperCPU.add_lora_linear


def install() -> None:
    """Replace the stock method by the grouped one."""
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
    add_grouped(y_rows, x_rows, lora_a_stacked, lora_b_stacked, scale, output_slices, self.token_lora_indices)


def add_grouped(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    indices: torch.Tensor,
) -> None:
    """Add each row's LoRA product to `y` in place.

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
    for slot in torch.unique(indices).tolist():
        if slot < 0:
            continue
        rows = (indices == slot).nonzero().squeeze(1)
        every_row = rows.numel() == x.shape[0]
        inputs = x if every_row else x.index_select(0, rows)
        start = 0
        for lora_a, lora_b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            a, b = lora_a[slot].view(-1, x.shape[1]), lora_b[slot].view(-1, lora_b.shape[-1])
            product = torch.nn.functional.linear(torch.nn.functional.linear(inputs.to(a.dtype), a), b[:width]) * scale
            target = y[:, start : start + width]
            if every_row:
                target += product.to(y.dtype)
            else:
                target.index_add_(0, rows, product.to(y.dtype))
            start += width
