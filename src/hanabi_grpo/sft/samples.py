"""Conversations as ids: what is held out, batches of similar length, and the loss on reply
tokens.
"""

import hashlib
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.errors import SettingsError

_WINDOW = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One player's conversation in one game, up to its last learned reply.

    Example: Sample(player=1, start=0x9F3C…, ids=array("i", [1, 5, …]), is_reply=array("b", [0, 0,
        …, 1, 1, 1]))
    """

    player: int
    start: int
    """A hash of the game's start, in Hanabi of the deck; it decides whether the game is held
    out.
    """
    ids: "array[int]"
    is_reply: "array[int]"
    """As long as `ids`: 1 for each token of a reply that is learned, its end token included."""


def split_held_out(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples to learn from and those of held-out starts.

    A tenth of the different starts, those with the lowest hashes, are held out, so the same start
    is on the same side whatever its seed, its players or the file that it came from. Samples of a
    single start are a SettingsError."""
    starts = sorted({sample.start for sample in samples})
    if len(starts) < 2:
        raise SettingsError(
            f"warm-start: the games have {len(starts)} start(s) with something to learn; at least "
            "2 are needed, one to "
            "learn from and one held out. Name scripts that play (hanabi-grpo warm-start iggi "
            "--out FOLDER), recorded "
            "games (--games FOLDER), or both; raise --tasks, or loosen --min-score and --who."
        )
    last = starts[max(1, round(len(starts) / 10)) - 1]
    return [one for one in samples if one.start > last], [
        one for one in samples if one.start <= last
    ]


def data_digest(samples: Sequence[Sample]) -> str:
    """Return a short sha256 over every id and mark: equal digests mean that the same is learned."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.player} {sample.start} {len(sample.ids)};".encode())
        digest.update(sample.ids.tobytes())
        digest.update(sample.is_reply.tobytes())
    return digest.hexdigest()[:16]


def length_batches(samples: Sequence[Sample], seed: int, size: int) -> Iterator[list[Sample]]:
    """Yield batches without end; the rows of one batch have about the same length, which saves
    padding.
    """
    rng = random.Random(seed)
    order = list(samples)
    while True:
        rng.shuffle(order)
        batches = []
        for start in range(0, len(order), size * _WINDOW):
            window = sorted(
                order[start : start + size * _WINDOW], key=lambda sample: len(sample.ids)
            )
            batches += [window[at : at + size] for at in range(0, len(window), size)]
        rng.shuffle(batches)
        yield from batches


def padded(batch: Sequence[Sample]) -> tuple[Any, Any]:
    """Return ids (int64) and marks (bool) of a batch, both (rows, longest), filled with zeros on
    the right.

    Attention is causal, so no real token ever sees what a row is filled with, and no mask is
    needed."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(sample.ids) for sample in batch]
    marks = [torch.tensor(sample.is_reply, dtype=torch.bool) for sample in batch]
    return pad_sequence(ids, batch_first=True), pad_sequence(marks, batch_first=True)


def reply_logits(model: Any, ids: Any, is_reply: Any) -> tuple[Any, Any]:
    """Return the logits that predict the marked tokens, (tokens, vocabulary), and those tokens'
    ids.

    The head and the last layer's feed-forward part see the marked positions alone. What rows begin
    with alike is computed once, if the model is one that shares prefixes, see
    `training/model/shared_prefixes`. `ids` and `is_reply` are those of `padded`."""
    from torch.nn.functional import embedding

    from hanabi_grpo.training.model import shared_prefixes
    from hanabi_grpo.training.model.prefix_tree import prefix_tree

    marked = is_reply[:, 1:]
    tree = prefix_tree(ids, marked) if shared_prefixes.shares_prefixes(model) else None
    [logits], nodes = shared_prefixes.reply_logits(model, model, ids, marked, tree)
    return logits if nodes is None else embedding(nodes, logits), ids[:, 1:][marked]


def num_exact_replies(logits: Any, targets: Any, is_reply: Any) -> tuple[int, int]:
    """Return how many replies have the most likely id at every token, and how many there are.

    Such a reply is what greedy sampling gives after the same conversation; a run of marked tokens
    is one reply."""
    marked, before = is_reply[:, 1:], is_reply[:, :-1]
    number = (marked & ~before).flatten().cumsum(0)[marked.flatten()]
    missed = number[logits.argmax(-1) != targets].unique().numel()
    total = int(number[-1]) if number.numel() else 0
    return total - missed, total
