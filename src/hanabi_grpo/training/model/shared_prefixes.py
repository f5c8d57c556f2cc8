"""Less computation for the same results: shared prefixes once, and nothing that no loss reads.

**Token-wise modules.** All tokens of a conversation are context for its replies. But after the last
layer's attention, no token depends on another, so the rest of the model is computed only at tokens
that predict a reply token. This always applies to the output head, whose logits are the largest
tensors of a real model. Without gradient checkpointing, it also applies to the last layer's output
projection and feed-forward part, a noticeable share of a small model.

**Prefix sharing.** Everything in a transformer except attention works token by token, so the model
is called with the nodes of a `PrefixTree` as one long row. Only attention arranges them as
sequences, and maps its result back to nodes. It is registered with transformers as a separate
attention implementation, which is PyTorch's (`sdpa`) if there is no tree.

Several trees of different players may form one row, see `row_owners`. Attention computes each tree
separately, with the same shapes as in a separate pass.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hanabi_grpo.training.model.prefix_tree import PrefixTree, prefix_tree

logger = logging.getLogger(__name__)

ATTENTION = "hanabi_prefix_tree"
"""Our name of the attention in transformers' registry."""
_PYTORCH_ATTENTION = "sdpa"
_FULL_ATTENTION = "full_attention"
_SLIDING_ATTENTION = "sliding_attention"
_LARGEST_GAP = 1e-3
"""Largest difference of two logits of a trial in float32, as a share of the largest logit."""
_LARGEST_ROUNDED_GAP = 0.1
"""The same for 16-bit number formats."""
_TOKEN_WISE_MODULES = ("self_attn.o_proj", "mlp")
"""Modules of a layer after its attention."""
_TRIAL_TOKENS = 24
_TRIAL_VOCABULARY = 7


@contextlib.contextmanager
def only_at(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """Temporarily restrict the output head and the token-wise modules before it to some positions.

    Args:
        model: The model, whose modules get hooks.
        positions: [rows, tokens], True at the positions to compute.
    """

    def select(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = inputs
        return (hidden[positions][None], *others)

    def put_back(_: Any, __: Any, output: Any) -> Any:
        # A mixture of experts returns more than one tensor.
        is_tuple = isinstance(output, tuple)
        hidden = output[0] if is_tuple else output
        zeros = hidden.new_zeros((*positions.shape, hidden.shape[-1]))
        everywhere = zeros.masked_scatter(positions[..., None], hidden)
        return (everywhere, *output[1:]) if is_tuple else everywhere

    with contextlib.ExitStack() as hooks:
        for module in token_wise(model):
            hooks.callback(module.register_forward_pre_hook(select).remove)
            hooks.callback(module.register_forward_hook(put_back).remove)
        hooks.callback(model.get_output_embeddings().register_forward_pre_hook(select).remove)
        yield


def token_wise(model: Any) -> list[torch.nn.Module]:
    """Return the modules of the last layer after its attention; none with checkpointing.

    With gradient checkpointing, layers run again in the backward pass, when the hooks of `only_at`
    have been removed.
    """
    base = _base_of(model)
    if base.is_gradient_checkpointing:
        return []
    layers = getattr(base.get_decoder(), "layers", None)
    if not layers:
        return []
    modules = dict(layers[-1].named_modules())
    return [modules[name] for name in _TOKEN_WISE_MODULES if name in modules]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    prefix_trees: Sequence[PrefixTree] = (),
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the trees' sequences; without a tree, use PyTorch's attention.

    Args:
        module: The attention layer.
        query: [1, heads, nodes, size].
        key: The same shape, possibly with fewer heads.
        value: Same shape as `key`.
        attention_mask: For PyTorch's attention; a tree needs none.
        prefix_trees: Trees of the nodes, in the order of the nodes.
        options: For PyTorch's attention.

    Returns:
        [1, nodes, heads, size] outputs, and None instead of attention weights.
    """
    if not prefix_trees:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    size = query.shape[-1]
    num_nodes = [len(tree.ids) for tree in prefix_trees]
    # `embedding` instead of indexing: its gradient adds up whole rows, much faster on a CPU.
    by_node = [states.transpose(1, 2).flatten(2)[0] for states in (query, key, value)]
    by_tree = zip(*(states.split(num_nodes) for states in by_node), strict=True)
    outputs = []
    for tree, of_tree in zip(prefix_trees, by_tree, strict=True):
        outputs.append(_attend_within(module, tree, of_tree, size, options))
    nodes = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return nodes.unflatten(-1, (-1, size))[None], None


def _attend_within(
    module: torch.nn.Module,
    tree: PrefixTree,
    by_node: Sequence[torch.Tensor],
    size: int,
    options: dict[str, Any],
) -> torch.Tensor:
    """Return [nodes, heads × size] outputs of attention within a tree's sequences.

    Args:
        module: The attention layer.
        tree: The tree of the nodes.
        by_node: Queries, keys and values, [nodes, heads × size] each.
        size: Width of a head.
        options: For PyTorch's attention.
    """
    outputs = []
    for rows in tree.blocks:
        laid_out = []
        for states in by_node:
            of_rows = embedding(rows, states).unflatten(-1, (-1, size))
            laid_out.append(of_rows.transpose(1, 2))
        output, _ = sdpa_attention_forward(module, *laid_out, None, **options)
        outputs.append(output.flatten(0, 1))
    return embedding(tree.homes, torch.cat(outputs).flatten(1))


def share_prefixes(model: Any) -> bool:
    """Make the model compute shared prefixes once, if a trial gives the same logits.

    Its attention must be PyTorch's, and its weights complete (not sharded by ZeRO-3).

    Returns:
        Whether prefix sharing is enabled; if not, the log has the reason.
    """
    base = _base_of(model)
    attention_before = base.config._attn_implementation
    if attention_before != _PYTORCH_ATTENTION:
        logger.info(
            "shared prefixes are computed separately for each sequence: attention is %r, not %r",
            attention_before,
            _PYTORCH_ATTENTION,
        )
        return False
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    base.set_attn_implementation(ATTENTION)
    problem = _trial(model)
    if problem:
        base.set_attn_implementation(attention_before)
        logger.warning("shared prefixes are computed separately for each sequence: %s", problem)
        return False
    return True


def largest_gap(dtype: torch.dtype) -> float:
    """Return the largest allowed difference of a trial's logits, as a share of the largest."""
    return _LARGEST_GAP if dtype == torch.float32 else _LARGEST_ROUNDED_GAP


def shares_prefixes(model: Any) -> bool:
    """Tell whether `share_prefixes` has enabled prefix sharing for this model."""
    return bool(model.config._attn_implementation == ATTENTION)


def reply_logits(
    model: Any, unwrapped: Any, ids: torch.Tensor, mask: torch.Tensor, tree: PrefixTree | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the logits from which reply tokens are predicted.

    Args:
        model: The module to call: the model or a wrapper of it.
        unwrapped: The model itself.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True if the token at the next position belongs to a reply.
        tree: Prefix tree of `ids` and `mask`; None: each row separately.

    Returns:
        [1, predicting nodes, vocabulary] logits, or hidden states with
        `output_head.return_hidden_states`; and [replies] the index of the node that predicts each
        reply token, in the order of `tree.predicting`, or None if they are in the order of the
        replies.
    """
    if tree is None:
        predicts = torch.nn.functional.pad(mask, (0, 1))
        with only_at(unwrapped, predicts):
            return model(input_ids=ids, use_cache=False).logits, None
    [answer] = tree_replies(model, unwrapped, [tree])
    return answer.logits, answer.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReplies:
    """The predictions of a tree's reply tokens."""

    logits: torch.Tensor
    """[1, predicting nodes, vocabulary] logits, or hidden states instead."""
    nodes: torch.Tensor
    """[replies] index of the node that predicts each reply token."""


def tree_replies(model: Any, unwrapped: Any, trees: Sequence[PrefixTree]) -> list[TreeReplies]:
    """Return the predictions of each tree's reply tokens, from one forward pass over all trees.

    Args:
        model: The module to call: the model or a wrapper of it.
        unwrapped: The model itself.
        trees: One or more trees.
    """
    all_predict = []
    all_nodes = []
    for tree in trees:
        no_node = torch.zeros_like(tree.ids, dtype=torch.bool)
        predicts = no_node.index_fill(0, tree.predicting, True)
        number_of_node = predicts.cumsum(0) - 1
        all_predict.append(predicts)
        all_nodes.append(number_of_node[tree.predicting])
    with only_at(unwrapped, torch.cat(all_predict)[None]):
        logits = tree_logits(model, trees)
    by_tree = logits.split([tree.num_predicting for tree in trees], dim=1)
    replies = []
    for of_tree, nodes in zip(by_tree, all_nodes, strict=True):
        replies.append(TreeReplies(logits=of_tree, nodes=nodes))
    return replies


def tree_logits(model: Any, trees: Sequence[PrefixTree]) -> torch.Tensor:
    """Return the model's logits at the nodes of all trees, tree by tree.

    Returns:
        [1, nodes, vocabulary], with only the nodes that the output head computes.
    """
    ids = torch.cat([tree.ids for tree in trees])
    positions = torch.cat([tree.positions for tree in trees])
    # transformers passes a 4D mask through unchanged, so that no mask of all nodes by all nodes is
    # built. An integer mask makes any attention that uses it fail.
    no_mask = ids.new_zeros(1, 1, 1, 1)
    logits: torch.Tensor = model(
        input_ids=ids[None],
        attention_mask=no_mask,
        position_ids=positions[None],
        use_cache=False,
        prefix_trees=tuple(trees),
    ).logits
    return logits


def _base_of(model: Any) -> Any:
    """Return the model inside PEFT's wrapper, or the model itself if it has no wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _layer_types(config: Any) -> set[str]:
    """Return the attention types of a model's layers, by transformers' names."""
    types = getattr(config, "layer_types", None)
    if types:
        return set(types)
    window = getattr(config, "sliding_window", None)
    return {_SLIDING_ATTENTION if window else _FULL_ATTENTION}


def _trial(model: Any) -> str | None:
    """Return why a tree's logits differ from those of its sequences; None if they agree."""
    config = model.config.get_text_config()
    layer_types = _layer_types(config)
    # A sliding window longer than the trial's sequences would have no effect in the trial.
    if layer_types != {_FULL_ATTENTION}:
        return f"layers of {', '.join(sorted(layer_types))}"
    # Three sequences that fork after 8 and after 16 tokens.
    vocabulary = min(config.vocab_size, _TRIAL_VOCABULARY)
    sequence = torch.arange(_TRIAL_TOKENS, device=model.device).remainder(vocabulary)
    ids = sequence.repeat(3, 1)
    ids[1, 8:] = ids[1, 8:].flip(0)
    ids[2, 16:] = 0
    mask = torch.ones(3, _TRIAL_TOKENS - 1, dtype=torch.bool, device=model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            tree = prefix_tree(ids, mask)
            shared = tree_logits(model, [tree])[0][tree.predicting].float()
            apart = model(input_ids=ids, use_cache=False).logits[:, :-1][mask]
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return f"{type(model).__name__} does not pass the prefix tree to its attention ({error})"
    finally:
        model.train(was_training)
    expected = apart.float()
    gap = float((shared - expected).abs().max() / expected.abs().max())
    allowed = largest_gap(apart.dtype)
    if gap <= allowed:
        return None
    return f"its logits differ by {gap:.2g} of the largest, allowed {allowed}"
