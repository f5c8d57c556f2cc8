"""The forward pass of a micro-batch, computed only where the loss reads it.

A sequence is a whole episode of one player, and most of its tokens are prompts, which have no loss
(`shared_prefixes`). `tests/conformance/test_forward_seams.py` checks that values and gradients
equal those of ms-swift's own pass.

Sequences are padded on the right, which causal attention never sees, so no mask is passed and the
attention kernel may use its causal shortcut.

**LoRA as one operation**, for models in float32. PEFT computes base(x) + B(A(x)) · scale with a
product and a sum over the whole output, which for a small model on a CPU cost about as much as the
matrix products. Here both are part of the product with B (`addmm`), and the gradients are written
explicitly:

    y = x Wᵀ + b + s (x Aᵀ) Bᵀ,   h = x Aᵀ,   e = s (∂y B)
    ∂B = s ∂yᵀ h,   ∂A = eᵀ x,   ∂x = ∂y W + e A

In a pass of several players (`row_owners`), this is done separately for each player's rows.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import Linear, LoraLayer
from trl.trainer.utils import selective_log_softmax

from hanabi_grpo.training.model.adapters import lora_layers, use_adapter, using_in
from hanabi_grpo.training.model.output_head import (
    FilteredSampling,
    TokenLaw,
    chosen_logps,
    law_of_logits,
    return_hidden_states,
    token_law,
)
from hanabi_grpo.training.model.prefix_tree import PrefixTree, prefix_tree
from hanabi_grpo.training.model.row_owners import OwnedRows, RowOwners, split_activations
from hanabi_grpo.training.model.shared_prefixes import largest_gap, reply_logits, tree_replies

_TRIAL_PLAYERS = 2
_TRIAL_TOKENS = 8


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
        model: The module to call: the model, or DDP's or DeepSpeed's wrapper of it.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True if the token at the next position belongs to a reply.
        temperature: Sampling temperature of the replies.
        tree: Prefix tree of `ids` and `mask`, for a model that shares prefixes; None: each row
            separately.
        whole_logits: For a model whose logits are more than its output head's, or for ZeRO-3: use
            the model's logits, all at once. Otherwise they are the head's, in float32 and in chunks
            (`output_head`).

    Returns:
        [rows, tokens - 1] logprobs of the tokens in `mask`; 0 at all others.
    """
    head = unwrapped.get_output_embeddings()
    states, choices = _states_and_choices(
        model, unwrapped, ids, mask, tree, whole_logits=whole_logits
    )
    return _logps_of(head, states, choices, mask, temperature, whole_logits=whole_logits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerRows:
    """One player's part of a forward pass of several players."""

    adapter: str
    """The player's adapter."""
    ids: torch.Tensor
    """[rows, tokens], padded on the right."""
    mask: torch.Tensor
    """[rows, tokens - 1], True if the token at the next position belongs to a reply."""
    tree: PrefixTree
    """Prefix tree of `ids` and `mask`."""


def shared_reply_logps(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    owners: RowOwners,
    parts: Sequence[PlayerRows],
    temperature: float,
    *,
    whole_logits: bool = False,
) -> list[torch.Tensor]:
    """Return `reply_logps` of several players from one forward pass, see `row_owners`.

    Args:
        model: The module to call, as in `reply_logps`.
        unwrapped: The model itself, which shares prefixes.
        owners: The row owners that the model's layers use, see `can_share_passes`.
        parts: The rows of at least two players.
        temperature: Sampling temperature of the replies.
        whole_logits: As in `reply_logps`.
    """
    owned = []
    for part in parts:
        rows = OwnedRows(
            adapter=part.adapter,
            num_nodes=len(part.tree.ids),
            num_predicting=part.tree.num_predicting,
        )
        owned.append(rows)
    owners.share(owned)
    head = unwrapped.get_output_embeddings()
    with contextlib.nullcontext() if whole_logits else return_hidden_states(head):
        replies = tree_replies(model, unwrapped, [part.tree for part in parts])
    logps = []
    for part, of_part in zip(parts, replies, strict=True):
        choices = _choices_of_nodes(
            of_part.nodes, part.ids[:, 1:][part.mask], num_nodes=of_part.logits.shape[1]
        )
        logps.append(
            _logps_of(
                head, of_part.logits, choices, part.mask, temperature, whole_logits=whole_logits
            )
        )
    return logps


def _logps_of(
    head: torch.nn.Module,
    states: torch.Tensor,
    choices: "_Choices",
    mask: torch.Tensor,
    temperature: float,
    *,
    whole_logits: bool,
) -> torch.Tensor:
    """Return [rows, tokens - 1] logprobs of the tokens in a mask; 0 at all others.

    Args:
        head: The model's output head.
        states: [1, positions, …] logits, or inputs of the head.
        choices: The requested tokens at each position.
        mask: [rows, tokens - 1].
        temperature: Sampling temperature of the tokens.
        whole_logits: Whether the states are logits.
    """
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
    """Return the distribution statistics of the reply tokens, in order, without a gradient.

    Args:
        model: The module to call, as in `reply_logps`.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True if the token at the next position belongs to a reply.
        temperature: Sampling temperature of the replies.
        tree: Prefix tree of `ids` and `mask`, for a model that shares prefixes.
        ceiling: Upper limit of a surprise in nats, see `output_head.TokenLaw`.
        sampling: The token filter that the replies were sampled with; None: no filter.
        whole_logits: As in `reply_logps`.

    Returns:
        A `TokenLaw` whose tensors have shape [reply tokens].
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
    """Return the output head's input for each reply token.

    Args:
        model: The module to call, as in `reply_logps`.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True if the token at the next position is requested.
        tree: Prefix tree of `ids` and `mask`, for a model that shares prefixes.

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
    """Return [1, positions, …] logits or head inputs, and the requested tokens at each position.

    Args:
        model: As in `reply_logps`, like the other arguments.
        unwrapped: The model itself.
        ids: [rows, tokens].
        mask: [rows, tokens - 1].
        tree: Prefix tree of `ids` and `mask`.
        whole_logits: Return logits instead of head inputs.
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
    """Tokens whose logprobs are computed, and the position of each reply token among them."""

    tokens: torch.Tensor
    """[positions, choices] ids; several replies may be predicted from one position of a tree."""
    of_replies: Any
    """Index into [positions, choices] that selects the reply tokens, in order."""


def _one_choice_each(targets: torch.Tensor) -> _Choices:
    """Return the choices if every reply token is predicted from its own position."""
    return _Choices(tokens=targets[:, None], of_replies=...)


def _choices_of_nodes(nodes: torch.Tensor, targets: torch.Tensor, num_nodes: int) -> _Choices:
    """Return the distinct reply tokens that are predicted at each node of a tree.

    Args:
        nodes: [replies] node that predicts each reply token.
        targets: [replies] token ids.
        num_nodes: Number of nodes that predict reply tokens.
    """
    # Encode a pair of node and token as one number, so that `unique` sorts by node.
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


def can_share_passes(
    model: PeftModel, owners: RowOwners, adapter_names: Sequence[str]
) -> str | None:
    """Return why several players cannot share a forward pass of a model; None: they can.

    They can if, in a trial, the values equal those of separate passes, and every layer with
    adapters gets all rows of the pass in order.

    Args:
        model: The model with all adapters and joined products, which shares prefixes.
        owners: The row owners that its layers use.
        adapter_names: Names of the run's adapters, at least two.
    """
    layers = lora_layers(model)
    if not all(_is_joined(layer) for layer in layers):
        return "adapters are on more than plain linear layers"
    if isinstance(model.get_output_embeddings(), LoraLayer):
        return "adapters are on the output head"
    split_activations(model, owners)
    vocabulary = model.config.get_text_config().vocab_size
    parts = []
    for number, name in enumerate(adapter_names[:_TRIAL_PLAYERS]):
        num_tokens = _TRIAL_TOKENS + number
        ids = torch.arange(number, number + num_tokens, device=model.device).remainder(vocabulary)
        mask = torch.ones(1, num_tokens - 1, dtype=torch.bool, device=model.device)
        tree = prefix_tree(ids[None], mask)
        parts.append(PlayerRows(adapter=name, ids=ids[None], mask=mask, tree=tree))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            shared = shared_reply_logps(model, model, owners, parts, 1.0)
            for part, logps in zip(parts, shared, strict=True):
                use_adapter(model, part.adapter)
                alone = reply_logps(model, model, part.ids, part.mask, 1.0, part.tree)
                gap = float((logps - alone).abs().max() / alone.abs().max())
                if gap > largest_gap(model.get_input_embeddings().weight.dtype):
                    return (
                        f"logprobs differ from those of separate passes by {gap:.2g} of the largest"
                    )
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return str(error)
    finally:
        model.train(was_training)
    return None


def _is_joined(layer: LoraLayer) -> bool:
    return type(layer) is Linear and type(layer.base_layer) is torch.nn.Linear


def join_lora_products(model: torch.nn.Module, owners: RowOwners | None = None) -> int:
    """Make every LoRA layer over a plain linear layer use the joined operation where it applies.

    Not for ZeRO-3, which gathers a module's weights when the module is called; the joined operation
    calls no inner modules.

    Args:
        model: The model with all adapters.
        owners: The row owners, if passes of several players are computed.

    Returns:
        The number of these layers.
    """
    num_joined = 0
    for layer in lora_layers(model):
        if _is_joined(layer):
            layer.forward = partial(_layer_forward, layer, owners)
            num_joined += 1
    return num_joined


def _layer_forward(
    layer: Linear, owners: RowOwners | None, x: torch.Tensor, *args: Any, **options: Any
) -> torch.Tensor:
    if args or options:
        return Linear.forward(layer, x, *args, **options)
    names = layer.active_adapters
    # None: all rows belong to one player.
    shared = owners if owners is not None and owners.is_shared else None
    if shared is None and len(names) != 1:
        return Linear.forward(layer, x)
    if not all(_can_join(layer, name, x) for name in names):
        if shared is not None:
            return shared.with_adapters(partial(_with_adapter, layer), x)
        return Linear.forward(layer, x)
    matrices = []
    for name in names:
        matrices += [layer.lora_A[name].weight, layer.lora_B[name].weight]
    base = layer.base_layer
    rows = x.reshape(-1, x.shape[-1])
    lengths = [len(rows)] if shared is None else shared.lengths_of(x)
    joined = _JoinedLora.apply(
        rows,
        base.weight,
        base.bias,
        lengths,
        [layer.scaling[name] for name in names],
        *matrices,
    )
    return joined.view(*x.shape[:-1], base.out_features)


def _with_adapter(layer: Linear, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return the output of PEFT's own layer with one adapter."""
    with using_in(layer, name):
        return Linear.forward(layer, x)


def _can_join(layer: Linear, name: str, x: torch.Tensor) -> bool:
    """Tell whether the joined operation computes the same as PEFT's layer for this input."""
    if layer.disable_adapters or layer.merged or name not in layer.lora_A:
        return False
    base_weight = layer.base_layer.weight
    operands = (x, base_weight, layer.lora_A[name].weight, layer.lora_B[name].weight)
    is_float32 = all(operand.dtype == torch.float32 for operand in operands)
    is_autocast = torch.is_autocast_enabled(x.device.type)
    return is_float32 and not is_autocast and not base_weight.requires_grad


class _JoinedLora(torch.autograd.Function):
    """y = x Wᵀ + b + s (x Aᵀ) Bᵀ for each owner's rows, see the top of this file."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        lengths: Sequence[int],
        scales: Sequence[float],
        *matrices: torch.Tensor,
    ) -> torch.Tensor:
        """Return y.

        Args:
            ctx: Stores what the gradients need.
            x: [rows, inputs].
            weight: W, [outputs, inputs], frozen.
            bias: b, [outputs], frozen.
            lengths: Number of rows of each owner; they sum to all rows.
            scales: s of each owner.
            matrices: A [rank, inputs] and B [outputs, rank] of each owner; ranks may differ.

        Returns:
            [rows, outputs].
        """
        y = x.new_empty(len(x), len(weight))
        lows = []
        for rows, output, down, up, scale in zip(
            x.split(lengths), y.split(lengths), matrices[::2], matrices[1::2], scales, strict=True
        ):
            low = rows @ down.t()
            if bias is None:
                torch.mm(rows, weight.t(), out=output)
            else:
                torch.addmm(bias, rows, weight.t(), out=output)
            output.addmm_(low, up.t(), alpha=scale)
            lows.append(low)
        ctx.save_for_backward(x, weight, *matrices, *lows)
        ctx.lengths = lengths
        ctx.scales = scales
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        [gradient] = gradients
        x, weight, *saved = ctx.saved_tensors
        num_owners = len(ctx.lengths)
        matrices = saved[: 2 * num_owners]
        lows = saved[2 * num_owners :]
        x_gradient = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        x_gradients = [None] * num_owners if x_gradient is None else x_gradient.split(ctx.lengths)
        matrix_gradients = []
        for rows, of_output, of_rows, down, up, low, scale in zip(
            x.split(ctx.lengths),
            gradient.split(ctx.lengths),
            x_gradients,
            matrices[::2],
            matrices[1::2],
            lows,
            ctx.scales,
            strict=True,
        ):
            low_gradient = (of_output @ up).mul_(scale)
            up_gradient = (of_output.t() @ low).mul_(scale)
            matrix_gradients += [low_gradient.t() @ rows, up_gradient]
            if of_rows is not None:
                torch.mm(of_output, weight, out=of_rows).addmm_(low_gradient, down)
        # The frozen weight and bias, the lengths and the scales have no gradient.
        return x_gradient, None, None, None, None, *matrix_gradients
