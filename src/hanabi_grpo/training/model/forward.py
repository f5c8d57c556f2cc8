"""The forward pass of a micro-batch, computed where the loss reads it.

A sequence is a whole game of one player, and most of its tokens are prompts, which carry no loss
(`shared_prefixes`). `tests/conformance/test_forward_seams.py` holds values and gradients equal to
those of ms-swift's own pass.

Sequences are padded on the right, where causal attention never looks, so no mask is handed on and
the attention kernel may use its causal shortcut.

**LoRA as one operation**, for models in float32. PEFT computes base(x) + B(A(x)) · scale with a
product and a sum over the whole output, which for a small model on a CPU cost about as much as the
matrix products. Here both are part of the product with B (`addmm`), and the gradients are written
out:

    y = x Wᵀ + b + s (x Aᵀ) Bᵀ,   h = x Aᵀ,   e = s (∂y B)
    ∂B = s ∂yᵀ h,   ∂A = eᵀ x,   ∂x = ∂y W + e A
"""

import contextlib
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import Linear
from trl.trainer.utils import selective_log_softmax

from hanabi_grpo.training.model.adapters import lora_layers
from hanabi_grpo.training.model.output_head import chosen_logps, handing_out
from hanabi_grpo.training.model.prefix_tree import PrefixTree
from hanabi_grpo.training.model.shared_prefixes import reply_logits


def reply_logps(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
    tree: PrefixTree | None = None,
    *,
    whole_logits: bool = False,
) -> torch.Tensor:
    """Return [rows, tokens - 1] logprobs of the tokens in `mask`, in nats; 0 at all others.

    Args: model: What is called: the model, or DDP's or DeepSpeed's wrapper of it. unwrapped: The
        model itself; its active adapter is used. ids: [rows, tokens], padded on the right. mask:
        [rows, tokens - 1], True where the token at the next position is a reply's. temperature:
        That the replies were sampled at. tree: Of `ids` and `mask`, for a model that shares
        prefixes; None: each row by itself. whole_logits: For a model that does more than its output
        head, or ZeRO-3: logits as it computes them, all at once. Without it they are the head's, in
        float32 and in chunks (`output_head`).
    """
    head, targets = unwrapped.get_output_embeddings(), ids[:, 1:][mask]
    with contextlib.nullcontext() if whole_logits else handing_out(head):
        states, nodes = reply_logits(model, unwrapped, ids, mask, tree)
    wanted, place = (
        (targets[:, None], ...) if nodes is None else _of_each_node(nodes, targets, states.shape[1])
    )
    if not whole_logits:
        found = chosen_logps(head, states[0], wanted, temperature)
    else:
        found = selective_log_softmax(
            states / temperature if temperature != 1 else states, wanted[None]
        )[0]
    chosen = found[place].flatten()
    return torch.zeros(mask.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(
        mask, chosen
    )


def reply_features(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    tree: PrefixTree | None = None,
) -> torch.Tensor:
    """Return [tokens in mask, width] what the output head reads for each, in float32, without a
    gradient.
    """
    with torch.no_grad(), handing_out(unwrapped.get_output_embeddings()):
        states, nodes = reply_logits(model, unwrapped, ids, mask, tree)
    return (states[0] if nodes is None else states[0][nodes]).float()


def _of_each_node(
    nodes: torch.Tensor, targets: torch.Tensor, num_nodes: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return [nodes, choices] the different `targets` at each of the `nodes`, and where each
    reply's is among them.
    """
    above = int(targets.max()) + 1 if len(targets) else 1
    pairs, which = (nodes * above + targets).unique(return_inverse=True)
    rows = pairs // above
    slots = torch.arange(len(rows), device=rows.device) - torch.searchsorted(rows, rows)
    wanted = targets.new_zeros(num_nodes, int(slots.max()) + 1 if len(slots) else 1)
    wanted[rows, slots] = pairs % above
    return wanted, (rows[which], slots[which])


def join_lora_products(model: torch.nn.Module) -> int:
    """Let every LoRA layer over a plain linear layer use the joined operation where it holds;
    returns their number.

    Not for ZeRO-3, which gathers the weights of a module when it is called, and here no inner
    module is."""
    layers = [
        one
        for one in lora_layers(model)
        if type(one) is Linear and type(one.base_layer) is torch.nn.Linear
    ]
    for layer in layers:
        layer.forward = partial(_joined_forward, layer)
    return len(layers)


def _joined_forward(layer: Linear, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    if args or options or not _holds(layer, x):
        return Linear.forward(layer, x, *args, **options)
    [name] = layer.active_adapters
    base = layer.base_layer
    rows = x.reshape(-1, x.shape[-1])
    joined = _JoinedLora.apply(
        rows,
        base.weight,
        base.bias,
        layer.lora_A[name].weight,
        layer.lora_B[name].weight,
        layer.scaling[name],
    )
    return joined.view(*x.shape[:-1], base.out_features)


def _holds(layer: Linear, x: torch.Tensor) -> bool:
    names = layer.active_adapters
    if layer.disable_adapters or layer.merged or len(names) != 1 or names[0] not in layer.lora_A:
        return False
    down, up = layer.lora_A[names[0]], layer.lora_B[names[0]]
    return (
        x.dtype
        == layer.base_layer.weight.dtype
        == down.weight.dtype
        == up.weight.dtype
        == torch.float32
        and not torch.is_autocast_enabled(x.device.type)
        and not layer.base_layer.weight.requires_grad
    )


class _JoinedLora(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        low = x @ down.t()
        ctx.save_for_backward(x, weight, down, up, low)
        ctx.scale = scale
        return torch.nn.functional.linear(x, weight, bias).addmm_(low, up.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        [gradient] = gradients
        x, weight, down, up, low = ctx.saved_tensors
        low_gradient = (gradient @ up).mul_(ctx.scale)
        up_gradient = (gradient.t() @ low).mul_(ctx.scale)
        x_gradient = (
            (gradient @ weight).addmm_(low_gradient, down) if ctx.needs_input_grad[0] else None
        )
        return x_gradient, None, None, low_gradient.t() @ x, up_gradient, None
