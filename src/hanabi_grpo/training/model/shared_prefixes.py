"""Less work for the same numbers: a model sees a token only where a loss reads it, and shared
prefixes once.

**Token by token.** All tokens of a conversation are context of its replies; but behind the last
layer's attention no token looks at another, so what is left of the model is computed at the tokens
that a reply token is predicted from: the output head always, whose logits are the largest tensors
of a real model, and, without gradient checkpointing, the last layer's output projection and
feed-forward part, a noticeable share of a small model.

**Prefix sharing.** Everything in a transformer but attention works token by token, so the model is
called with the nodes of a `PrefixTree` as one long row. Only attention lays them out as sequences,
and puts its result back. It is registered with transformers as an implementation of attention of
its own, which without a tree is PyTorch's (`sdpa`)."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import embedding
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hanabi_grpo.training.model.prefix_tree import PrefixTree, prefix_tree

logger = logging.getLogger(__name__)

ATTENTION = "hanabi_prefix_tree"
_LARGEST_GAP, _LARGEST_ROUNDED_GAP = 1e-3, 0.1
"""Between two logits of the trial, as a share of the largest: in float32, and in number formats of
16 bits.
"""


@contextlib.contextmanager
def only_at(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """Let the output head, and what works token by token before it, see only [rows, tokens]
    `positions`.
    """

    def select(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = inputs
        return (hidden[positions][None], *others)

    def put_back(_: Any, __: Any, output: Any) -> Any:
        # A mixture of experts returns more than one tensor.
        several = isinstance(output, tuple)
        hidden = output[0] if several else output
        whole = hidden.new_zeros((*positions.shape, hidden.shape[-1])).masked_scatter(
            positions[..., None], hidden
        )
        return (whole, *output[1:]) if several else whole

    with contextlib.ExitStack() as hooks:
        for module in token_wise(model):
            hooks.callback(module.register_forward_pre_hook(select).remove)
            hooks.callback(module.register_forward_hook(put_back).remove)
        hooks.callback(model.get_output_embeddings().register_forward_pre_hook(select).remove)
        yield


def token_wise(model: Any) -> list[torch.nn.Module]:
    """Return the parts of the last layer behind its attention; none under gradient
    checkpointing.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # Checkpointed layers run again in the backward pass, where these hooks are gone.
    if base.is_gradient_checkpointing:
        return []
    layers = getattr(base.get_decoder(), "layers", None)
    last = dict(layers[-1].named_modules()) if layers else {}
    return [last[name] for name in ("self_attn.o_proj", "mlp") if name in last]


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    prefix_tree: PrefixTree | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the tree's sequences; without a tree as PyTorch does.

    `query`, `key` and `value` are [1, heads, nodes, size], the latter perhaps with fewer heads; the
    result is [1, nodes, heads, size] outputs, and no weights."""
    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    # Not indexed: the gradient of `embedding` adds whole rows up, on a CPU much faster.
    flat = [states.transpose(1, 2).flatten(2)[0] for states in (query, key, value)]
    size, found = query.shape[-1], []
    for rows in prefix_tree.blocks:
        laid_out = [
            embedding(rows, states).unflatten(-1, (-1, size)).transpose(1, 2) for states in flat
        ]
        output, _ = sdpa_attention_forward(module, *laid_out, None, **options)
        found.append(output.flatten(0, 1))
    nodes = embedding(prefix_tree.homes, torch.cat(found).flatten(1))
    return nodes.unflatten(-1, (-1, size))[None], None


def share_prefixes(model: Any) -> bool:
    """Let the model compute shared prefixes once, if its attention is PyTorch's and a trial gives
    the same logits.

    The model needs whole weights (not ZeRO-3's). Returns whether it does from now on; if not, the
    log says why."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    before = base.config._attn_implementation
    if before != "sdpa":
        logger.info(
            "shared prefixes are computed for each sequence: attention is %r, not 'sdpa'", before
        )
        return False
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    base.set_attn_implementation(ATTENTION)
    problem = _trial(model)
    if problem:
        base.set_attn_implementation(before)
        logger.warning("shared prefixes are computed for each sequence: %s", problem)
    return not problem


def largest_gap(dtype: torch.dtype) -> float:
    """Return how far the logits of a trial may be apart, as a share of the largest."""
    return _LARGEST_GAP if dtype == torch.float32 else _LARGEST_ROUNDED_GAP


def shares_prefixes(model: Any) -> bool:
    """Tell whether `share_prefixes` was tried on this model and worked."""
    return bool(model.config._attn_implementation == ATTENTION)


def reply_logits(
    model: Any, unwrapped: Any, ids: torch.Tensor, mask: torch.Tensor, tree: PrefixTree | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the logits from which reply tokens are predicted, and which of them predicts each;
    None: in their order.

    They are [1, nodes that predict, vocabulary] and [replies], in the order of `tree.predicting`;
    with `output_head.handing_out` hidden states are in the place of logits. The arguments are those
    of `forward.reply_logps`."""
    if tree is None:
        with only_at(unwrapped, torch.nn.functional.pad(mask, (0, 1))):
            return model(input_ids=ids, use_cache=False).logits, None
    predicts = torch.zeros_like(tree.ids, dtype=torch.bool).index_fill(0, tree.predicting, True)
    with only_at(unwrapped, predicts[None]):
        return tree_logits(model, tree), (predicts.cumsum(0) - 1)[tree.predicting]


def tree_logits(model: Any, tree: PrefixTree) -> torch.Tensor:
    """Return the model's logits at the nodes, [1, nodes, vocabulary] or as many nodes as its head
    is shown.
    """
    # A mask of four dimensions is taken as it is, so that none is made of all nodes times all
    # nodes; one of integers is refused by any attention that looks at it.
    no_mask = tree.ids.new_zeros(1, 1, 1, 1)
    logits: torch.Tensor = model(
        input_ids=tree.ids[None],
        attention_mask=no_mask,
        position_ids=tree.positions[None],
        use_cache=False,
        prefix_tree=tree,
    ).logits
    return logits


def _trial(model: Any) -> str | None:
    # A window longer than the trial's sequences would not show in it.
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(
        getattr(config, "layer_types", None)
        or ["sliding_attention" if window else "full_attention"]
    )
    if kinds != {"full_attention"}:
        return f"layers of {', '.join(sorted(kinds))}"
    ids = torch.arange(24, device=model.device).remainder(min(config.vocab_size, 7)).repeat(3, 1)
    ids[1, 8:], ids[2, 16:] = ids[1, 8:].flip(0), 0
    mask = torch.ones(3, 23, dtype=torch.bool, device=model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            tree = prefix_tree(ids, mask)
            shared = tree_logits(model, tree)[0][tree.predicting].float()
            whole = model(input_ids=ids, use_cache=False).logits[:, :-1][mask]
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return f"{type(model).__name__} does not hand a tree to its attention ({error})"
    finally:
        model.train(was_training)
    gap = float((shared - whole.float()).abs().max() / whole.float().abs().max())
    allowed = largest_gap(whole.dtype)
    return (
        None
        if gap <= allowed
        else f"its logits differ by {gap:.2g} of the largest, allowed {allowed}"
    )
