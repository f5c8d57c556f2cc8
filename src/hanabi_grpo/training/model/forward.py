"""The forward pass of a micro-batch, computed where the loss reads it.

A sequence is a whole game of one player, and most of its tokens are prompts, which carry no loss (`shared_prefixes`).
`tests/conformance/test_forward_seams.py` holds values and gradients equal to those of ms-swift's own pass.

Sequences are padded on the right, where causal attention never looks, so no mask is handed on and the attention kernel
may use its causal shortcut.
"""

import torch
from peft import PeftModel
from trl.trainer.utils import selective_log_softmax

from hanabi_grpo.training.model.prefix_tree import PrefixTree
from hanabi_grpo.training.model.shared_prefixes import only_at, reply_logits


def reply_logps(
    model: torch.nn.Module,
    unwrapped: PeftModel,
    ids: torch.Tensor,
    mask: torch.Tensor,
    temperature: float,
    tree: PrefixTree | None = None,
) -> torch.Tensor:
    """Return [rows, tokens - 1] logprobs of the tokens in `mask`, in nats; 0 at all others.

    Args:
        model: What is called: the model, or DDP's or DeepSpeed's wrapper of it.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is a reply's.
        temperature: That the replies were sampled at.
        tree: Of `ids` and `mask`, for a model that shares prefixes; None: each row by itself.
    """
    if tree is None:
        with only_at(unwrapped, torch.nn.functional.pad(mask, (0, 1))):
            logits = model(input_ids=ids, use_cache=False).logits
    else:
        logits, nodes = reply_logits(model, unwrapped, tree)
    if temperature != 1:
        logits = logits / temperature
    targets = ids[:, 1:][mask]
    if tree is None:
        found = selective_log_softmax(logits, targets[None])[0]
    else:
        found = _of_each_sequence(logits, nodes, targets)
    return torch.zeros(mask.shape, dtype=found.dtype, device=found.device).masked_scatter(mask, found)


def _of_each_sequence(logits: torch.Tensor, nodes: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return [replies] logprobs of `targets` at `nodes` of [1, nodes, vocabulary] `logits`; no row is copied."""
    vocabulary = logits.shape[-1]
    pairs, which = (nodes * vocabulary + targets).unique(return_inverse=True)
    rows = pairs // vocabulary
    slots = torch.arange(len(rows), device=rows.device) - torch.searchsorted(rows, rows)
    wanted = targets.new_zeros(logits.shape[1], int(slots.max()) + 1 if len(slots) else 1)
    wanted[rows, slots] = pairs % vocabulary
    return selective_log_softmax(logits, wanted[None])[0][rows[which], slots[which]]
