"""Batches of conversations, and the loss on their reply tokens."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hanabi_grpo.sft.samples import Sample

_WINDOW = 32


def length_batches(samples: Sequence[Sample], seed: int, size: int) -> Iterator[list[Sample]]:
    """Yield batches without end; the rows of one batch have about the same length, which saves padding."""
    rng = random.Random(seed)
    order = list(range(len(samples)))
    while True:
        rng.shuffle(order)
        batches = []
        for start in range(0, len(order), size * _WINDOW):
            window = sorted(order[start : start + size * _WINDOW], key=lambda index: len(samples[index].ids))
            batches += [window[at : at + size] for at in range(0, len(window), size)]
        rng.shuffle(batches)
        for batch in batches:
            yield [samples[index] for index in batch]


def padded(batch: Sequence[Sample], pad_id: int) -> tuple[Any, Any]:
    """Return ids (int64) and marks (bool) of a batch, both (rows, longest), filled on the right.

    Attention is causal, so no real token ever sees a pad, and no mask is needed.
    """
    import torch

    longest = max(len(sample.ids) for sample in batch)
    ids = torch.full((len(batch), longest), pad_id)
    is_reply = torch.zeros((len(batch), longest), dtype=torch.bool)
    for row, sample in enumerate(batch):
        ids[row, : len(sample.ids)] = torch.from_numpy(np.array(sample.ids, dtype=np.int64))
        is_reply[row, : len(sample.ids)] = torch.from_numpy(np.array(sample.is_reply, dtype=np.bool_))
    return ids, is_reply


def reply_logits(model: Any, ids: Any, is_reply: Any) -> tuple[Any, Any]:
    """Return the logits that predict the marked tokens, (tokens, vocabulary), and those tokens' ids.

    The head and the last layer's feed-forward part see the marked positions alone. What rows begin with alike is
    computed once, if the model is one that shares prefixes, see `training/model/shared_prefixes`. `ids` and `is_reply`
    are those of `padded`.
    """
    from torch.nn.functional import embedding, pad

    from hanabi_grpo.training.model import shared_prefixes
    from hanabi_grpo.training.model.prefix_tree import prefix_tree

    marked = is_reply[:, 1:]
    if shared_prefixes.shares_prefixes(model):
        logits, nodes = shared_prefixes.reply_logits(model, model, prefix_tree(ids, marked))
        return embedding(nodes, logits[0]), ids[:, 1:][marked]
    with shared_prefixes.only_at(model, pad(marked, (0, 1))):
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return model.get_output_embeddings()(hidden)[0], ids[:, 1:][marked]


def num_exact_replies(logits: Any, targets: Any, is_reply: Any) -> tuple[int, int]:
    """Return how many replies have the most likely id at every token, and how many there are.

    Such a reply is what greedy sampling gives after the same conversation; a run of marked tokens is one reply.
    """
    marked, before = is_reply[:, 1:], is_reply[:, :-1]
    number = (marked & ~before).flatten().cumsum(0)[marked.flatten()]
    missed = number[logits.argmax(-1) != targets].unique().numel()
    total = int(number[-1]) if number.numel() else 0
    return total - missed, total
