"""PEFT's LoRA layer as one operation, for models in float32.

PEFT computes base(x) + B(A(x)) · scale as a product and a sum over the whole output beside the three matrix products,
forward and backward. For a small model on a CPU these cost about as much as the products. Here both are part of the
product with B (`addmm`), and the gradients are written out:

    y = x Wᵀ + b + s (x Aᵀ) Bᵀ,   h = x Aᵀ,   e = s (∂y B)
    ∂B = s ∂yᵀ h,   ∂A = eᵀ x,   ∂x = ∂y W + e A
"""

from functools import partial
from typing import Any

import torch
from peft.tuners.lora.layer import Linear

from hanabi_grpo.training.model.adapters import lora_layers


def join_lora_products(model: torch.nn.Module) -> int:
    """Let every LoRA layer over a plain linear layer use the joined operation where it holds; returns their number.

    Not for ZeRO-3, which gathers the weights of a module when it is called, and here no inner module is.
    """
    layers = [one for one in lora_layers(model) if type(one) is Linear and type(one.base_layer) is torch.nn.Linear]
    for layer in layers:
        layer.forward = partial(_forward, layer)
    return len(layers)


def _forward(layer: Linear, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    if args or options or not _holds(layer, x):
        return Linear.forward(layer, x, *args, **options)
    [name] = layer.active_adapters
    base = layer.base_layer
    rows = x.reshape(-1, x.shape[-1])
    joined = _JoinedLora.apply(
        rows, base.weight, base.bias, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
    )
    return joined.view(*x.shape[:-1], base.out_features)


def _holds(layer: Linear, x: torch.Tensor) -> bool:
    names = layer.active_adapters
    if layer.disable_adapters or layer.merged or len(names) != 1 or names[0] not in layer.lora_A:
        return False
    down, up = layer.lora_A[names[0]], layer.lora_B[names[0]]
    return (
        x.dtype == layer.base_layer.weight.dtype == down.weight.dtype == up.weight.dtype == torch.float32
        and not torch.is_autocast_enabled(x.device.type)
        and not layer.base_layer.weight.requires_grad
        and isinstance(layer.lora_dropout[names[0]], torch.nn.Identity)
        and names[0] not in layer.lora_variant
        and up.bias is None
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
        x_gradient = (gradient @ weight).addmm_(low_gradient, down) if ctx.needs_input_grad[0] else None
        return x_gradient, None, None, low_gradient.t() @ x, up_gradient, None
