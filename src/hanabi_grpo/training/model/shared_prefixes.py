"""Less work for the same numbers: shared prefixes once, and nothing that no loss reads.

**Token by token.** All tokens of a conversation are context of its replies; but behind the last
layer's attention no token looks at another, so what is left of the model is computed at the tokens
that a reply token is predicted from: the output head always, whose logits are the largest tensors
of a real model, and, without gradient checkpointing, the last layer's output projection and
feed-forward part, a noticeable share of a small model.

**Prefix sharing.** Everything in a transformer but attention works token by token, so the model is
called with the nodes of a `PrefixTree` as one long row. Only attention lays them out as sequences,
and puts its result back. It is registered with transformers as an implementation of attention of
its own, which without a tree is PyTorch's (`sdpa`).

Several trees, of different players, may be one row, see `row_owners`. Attention computes each tree
by itself, with the shapes that it has alone.
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
"""Between two logits of a trial in float32, as a share of the largest."""
_LARGEST_ROUNDED_GAP = 0.1
"""The same in number formats of 16 bits."""
_TOKEN_WISE_MODULES = ("self_attn.o_proj", "mlp")
"""Parts of a layer behind its attention."""
_TRIAL_TOKENS = 24
_TRIAL_VOCABULARY = 7


@contextlib.contextmanager
def only_at(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """Let the output head, and what works token by token before it, see only some positions.

    Args:
        model: Whose modules are hooked for a while.
        positions: [rows, tokens], True at those that are seen.
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
    """Return the parts of the last layer behind its attention; none under checkpointing.

    Layers with gradient checkpointing run again in the backward pass, where the hooks of `only_at`
    are gone.
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
    """Attend within the trees' sequences; without a tree as PyTorch does.

    Args:
        module: The attention layer.
        query: [1, heads, nodes, size].
        key: The same, perhaps with fewer heads.
        value: As `key`.
        attention_mask: For PyTorch's attention; a tree needs none.
        prefix_trees: Of the nodes, one tree's after the other's.
        options: For PyTorch's attention.

    Returns:
        [1, nodes, heads, size] outputs, and no weights.
    """
    if not prefix_trees:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    size = query.shape[-1]
    num_nodes = [len(tree.ids) for tree in prefix_trees]
    # Not indexed: the gradient of `embedding` adds whole rows up, on a CPU much faster.
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
        tree: Of the nodes.
        by_node: Queries, keys and values, [nodes, heads × size] each.
        size: Of a head.
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
    """Let the model compute shared prefixes once, if a trial gives the same logits.

    Its attention must be PyTorch's, and its weights whole (not ZeRO-3's).

    Returns:
        Whether it does from now on; if not, the log says why.
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
    """Return how far the logits of a trial may be apart, as a share of the largest."""
    return _LARGEST_GAP if dtype == torch.float32 else _LARGEST_ROUNDED_GAP


def shares_prefixes(model: Any) -> bool:
    """Tell whether `share_prefixes` was tried on this model and worked."""
    return bool(model.config._attn_implementation == ATTENTION)


def reply_logits(
    model: Any, unwrapped: Any, ids: torch.Tensor, mask: torch.Tensor, tree: PrefixTree | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the logits from which reply tokens are predicted.

    Args:
        model: What is called: the model, or a wrapper of it.
        unwrapped: The model itself.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is a reply's.
        tree: Of `ids` and `mask`; None: each row by itself.

    Returns:
        [1, nodes that predict, vocabulary] logits, with `output_head.return_hidden_states` hidden
        states in their place; and [replies] which of these nodes predicts each reply token, in the
        order of `tree.predicting`, or None: they are in the order of the replies.
    """
    if tree is None:
        predicts = torch.nn.functional.pad(mask, (0, 1))
        with only_at(unwrapped, predicts):
            return model(input_ids=ids, use_cache=False).logits, None
    [answer] = tree_replies(model, unwrapped, [tree])
    return answer.logits, answer.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReplies:
    """What predicts the reply tokens of a tree."""

    logits: torch.Tensor
    """[1, nodes that predict, vocabulary] logits, or hidden states in their place."""
    nodes: torch.Tensor
    """[replies] which of these nodes predicts each reply token."""


def tree_replies(model: Any, unwrapped: Any, trees: Sequence[PrefixTree]) -> list[TreeReplies]:
    """Return what predicts the reply tokens of each tree, from one forward pass over all of them.

    Args:
        model: What is called: the model, or a wrapper of it.
        unwrapped: The model itself.
        trees: At least one.
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
    """Return the model's logits at the nodes, one tree's after the other's.

    Returns:
        [1, nodes, vocabulary], or as many nodes as its head is shown.
    """
    ids = torch.cat([tree.ids for tree in trees])
    positions = torch.cat([tree.positions for tree in trees])
    # A mask of four dimensions is taken as it is, so that none is made of all nodes times all
    # nodes; one of integers is refused by any attention that looks at it.
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
    """Return the model under PEFT's wrapper, or the model where it has none."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _layer_types(config: Any) -> set[str]:
    """Return the kinds of attention that a model's layers have, by transformers' names."""
    types = getattr(config, "layer_types", None)
    if types:
        return set(types)
    window = getattr(config, "sliding_window", None)
    return {_SLIDING_ATTENTION if window else _FULL_ATTENTION}


def _trial(model: Any) -> str | None:
    """Return why the model's logits of a tree are not those of its sequences; None: they are."""
    config = model.config.get_text_config()
    layer_types = _layer_types(config)
    # A window longer than the trial's sequences would not show in it.
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
