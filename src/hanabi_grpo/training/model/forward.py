"""The forward pass of a micro-batch, computed where the loss reads it.

A sequence is a whole game of one player, and most of its tokens are prompts, which carry no loss
(`shared_prefixes`). `tests/conformance/test_forward_seams.py` holds values and gradients equal to
those of ms-swift's own pass.

Sequences are padded on the right, where causal attention never looks, so no mask is passed and the
attention kernel may use its causal shortcut.

**LoRA as one operation**, for models in float32. PEFT computes base(x) + B(A(x)) · scale with a
product and a sum over the whole output, which for a small model on a CPU cost about as much as the
matrix products. Here both are part of the product with B (`addmm`), and the gradients are written
out:

    y = x Wᵀ + b + s (x Aᵀ) Bᵀ,   h = x Aᵀ,   e = s (∂y B)
    ∂B = s ∂yᵀ h,   ∂A = eᵀ x,   ∂x = ∂y W + e A
"""

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import Linear
from trl.trainer.utils import selective_log_softmax

from hanabi_grpo.training.model.adapters import lora_layers
from hanabi_grpo.training.model.output_head import (
    FilteredSampling,
    TokenLaw,
    chosen_logps,
    law_of_logits,
    return_hidden_states,
    token_law,
)
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
    """Return the logprobs of reply tokens, in nats.

    Args:
        model: What is called: the model, or DDP's or DeepSpeed's wrapper of it.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is a reply's.
        temperature: That the replies were sampled at.
        tree: Of `ids` and `mask`, for a model that shares prefixes; None: each row by itself.
        whole_logits: For a model that does more than its output head, or ZeRO-3: logits as it
            computes them, all at once. Without it they are the head's, in float32 and in chunks
            (`output_head`).

    Returns:
        [rows, tokens - 1] of the tokens in `mask`; 0 at all others.
    """
    head = unwrapped.get_output_embeddings()
    states, choices = _states_and_choices(
        model, unwrapped, ids, mask, tree, whole_logits=whole_logits
    )
    if whole_logits:
        logits = states / temperature if temperature != 1 else states
        logps = selective_log_softmax(logits, choices.tokens[None])[0]
    else:
        logps = chosen_logps(head, states[0], choices.tokens, temperature)
    of_replies = logps[choices.of_replies].flatten()
    zeros = torch.zeros(mask.shape, dtype=of_replies.dtype, device=of_replies.device)
    return zeros.masked_scatter(mask, of_replies)


@torch.no_grad()
def reply_law(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
    tree: PrefixTree | None = None,
    *,
    ceiling: float,
    sampling: FilteredSampling | None = None,
    whole_logits: bool = False,
) -> TokenLaw:
    """Return the law of the reply tokens, in their order, without a gradient.

    Args:
        model: What is called, as in `reply_logps`.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is a reply's.
        temperature: That the replies were sampled at.
        tree: Of `ids` and `mask`, for a model that shares prefixes.
        ceiling: Most nats that a surprise counts, see `output_head.TokenLaw`.
        sampling: What the replies were drawn with; None: every token could be drawn.
        whole_logits: As in `reply_logps`.

    Returns:
        All of it [reply tokens].
    """
    states, choices = _states_and_choices(
        model, unwrapped, ids, mask, tree, whole_logits=whole_logits
    )
    if whole_logits:
        law = law_of_logits(states[0], choices.tokens, temperature, ceiling, sampling)
    else:
        head = unwrapped.get_output_embeddings()
        law = token_law(head, states[0], choices.tokens, temperature, ceiling, sampling)
    position = choices.of_replies
    if position is not ...:
        position = position[0]
    return law.at(choices.of_replies, position)


def reply_features(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    tree: PrefixTree | None = None,
) -> torch.Tensor:
    """Return `reply_states` without a gradient."""
    with torch.no_grad():
        return reply_states(model, unwrapped, ids, mask, tree)


def reply_states(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    tree: PrefixTree | None = None,
) -> torch.Tensor:
    """Return what the output head reads for each reply token.

    Args:
        model: What is called, as in `reply_logps`.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is looked at.
        tree: Of `ids` and `mask`, for a model that shares prefixes.

    Returns:
        [tokens in mask, width] in float32.
    """
    with return_hidden_states(unwrapped.get_output_embeddings()):
        states, nodes = reply_logits(model, unwrapped, ids, mask, tree)
    if nodes is None:
        return states[0].float()
    return states[0][nodes].float()


def _states_and_choices(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    tree: PrefixTree | None,
    *,
    whole_logits: bool,
) -> "tuple[torch.Tensor, _Choices]":
    """Return [1, positions, …] logits or what the head reads, and what is asked at each position.

    Args:
        model: As in `reply_logps`, and so are the others.
        unwrapped: The model itself.
        ids: [rows, tokens].
        mask: [rows, tokens - 1].
        tree: Of `ids` and `mask`.
        whole_logits: Logits, not what the head reads.
    """
    head = unwrapped.get_output_embeddings()
    targets = ids[:, 1:][mask]
    with contextlib.nullcontext() if whole_logits else return_hidden_states(head):
        states, nodes = reply_logits(model, unwrapped, ids, mask, tree)
    if nodes is None:
        return states, _one_choice_each(targets)
    return states, _choices_of_nodes(nodes, targets, num_nodes=states.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """Tokens whose logprobs are computed, and where each reply token is among them."""

    tokens: torch.Tensor
    """[positions, choices] ids; several replies may be predicted from one position of a tree."""
    of_replies: Any
    """Index into [positions, choices] that takes each reply token's, in their order."""


def _one_choice_each(targets: torch.Tensor) -> _Choices:
    """Return the choices where every reply token is predicted from a position of its own."""
    return _Choices(tokens=targets[:, None], of_replies=...)


def _choices_of_nodes(nodes: torch.Tensor, targets: torch.Tensor, num_nodes: int) -> _Choices:
    """Return the different reply tokens that are predicted at each node of a tree.

    Args:
        nodes: [replies] the node that predicts each.
        targets: [replies] token ids.
        num_nodes: Nodes that predict any.
    """
    # A pair of a node and a token as one number, so that `unique` sorts by node.
    base = int(targets.max()) + 1 if len(targets) else 1
    pairs, pair_of_reply = (nodes * base + targets).unique(return_inverse=True)
    pair_nodes = pairs // base
    pair_tokens = pairs % base
    first_pair_of_node = torch.searchsorted(pair_nodes, pair_nodes)
    slots = torch.arange(len(pairs), device=pairs.device) - first_pair_of_node
    num_slots = int(slots.max()) + 1 if len(slots) else 1
    tokens = targets.new_zeros(num_nodes, num_slots)
    tokens[pair_nodes, slots] = pair_tokens
    return _Choices(tokens=tokens, of_replies=(pair_nodes[pair_of_reply], slots[pair_of_reply]))


def join_lora_products(model: torch.nn.Module) -> int:
    """Let every LoRA layer over a plain linear layer use the joined operation where it holds.

    Not for ZeRO-3, which gathers the weights of a module when it is called, and here no inner
    module is.

    Returns:
        The number of these layers.
    """
    num_joined = 0
    for layer in lora_layers(model):
        if type(layer) is Linear and type(layer.base_layer) is torch.nn.Linear:
            layer.forward = partial(_joined_forward, layer)
            num_joined += 1
    return num_joined


def _joined_forward(layer: Linear, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    if args or options or not _can_join(layer, x):
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


def _can_join(layer: Linear, x: torch.Tensor) -> bool:
    """Tell whether the joined operation is what PEFT's layer would compute of this input."""
    names = layer.active_adapters
    if layer.disable_adapters or layer.merged or len(names) != 1:
        return False
    [name] = names
    if name not in layer.lora_A:
        return False
    base_weight = layer.base_layer.weight
    operands = (x, base_weight, layer.lora_A[name].weight, layer.lora_B[name].weight)
    is_float32 = all(operand.dtype == torch.float32 for operand in operands)
    is_autocast = torch.is_autocast_enabled(x.device.type)
    return is_float32 and not is_autocast and not base_weight.requires_grad


class _JoinedLora(torch.autograd.Function):
    """y = x Wᵀ + b + s (x Aᵀ) Bᵀ, see the head of this file; `down` is A, `up` is B."""

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
        """Return y.

        Args:
            ctx: Keeps what the gradients need.
            x: [rows, inputs].
            weight: W, [outputs, inputs], frozen.
            bias: b, [outputs], frozen.
            down: A, [rank, inputs].
            up: B, [outputs, rank].
            scale: s.

        Returns:
            [rows, outputs].
        """
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
        down_gradient = low_gradient.t() @ x
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = (gradient @ weight).addmm_(low_gradient, down)
        # Neither the frozen weight and bias nor the scale has one.
        return x_gradient, None, None, down_gradient, up_gradient, None
