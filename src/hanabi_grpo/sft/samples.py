"""Conversations as token ids: held-out starts, batches, and the logits of reply tokens."""

import hashlib
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.errors import SettingsError

_BATCHES_OF_A_WINDOW = 32
"""Number of batches that are sorted by length together."""
_MIN_STARTS = 2
_HELD_OUT_PART = 10
"""One in this many starts is held out."""
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One player's conversation in one game, up to its last learned reply.

    Example:
        Sample(
            player=1,
            start=0x9F3C…,
            ids=array("i", [1, 5, …]),
            is_reply=array("b", [0, 0, …, 1, 1, 1]),
        )
    """

    player: int
    start: int
    """A hash of the game's start (in Hanabi, the deck).

    It determines whether the game is held out.
    """
    ids: "array[int]"
    is_reply: "array[int]"
    """Same length as `ids`: 1 for each token of a learned reply, including its end token."""
    question_start: int | None = None
    """Start of the turn whose question is answered (`beliefs`); None: the replies are moves."""


class TooFewGamesError(SettingsError):
    """The games hold too little to learn from."""


def split_held_out(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Split samples into training samples and samples of held-out starts.

    A tenth of the distinct starts, those with the lowest hashes, is held out. The same start is
    therefore always on the same side, whatever its seed, its players or its file.

    Raises:
        TooFewGamesError: The samples have fewer than two distinct starts.
    """
    starts = sorted({sample.start for sample in samples})
    if len(starts) < _MIN_STARTS:
        raise TooFewGamesError(
            f"warm-start: the games have {len(starts)} start(s) with something to learn; at least "
            "2 are required, one to learn from and one held out. Name scripts that play "
            "(hanabi-grpo warm-start iggi --out FOLDER), recorded games (--games FOLDER), or both; "
            "raise --tasks, or loosen --min-score and --who."
        )
    num_held_out = max(1, round(len(starts) / _HELD_OUT_PART))
    last_held_out = starts[num_held_out - 1]
    taught = [sample for sample in samples if sample.start > last_held_out]
    held_out = [sample for sample in samples if sample.start <= last_held_out]
    return taught, held_out


def data_digest(samples: Sequence[Sample]) -> str:
    """Return a short SHA-256 of every id and mark; equal digests mean equal training data."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.player} {sample.start} {len(sample.ids)};".encode())
        digest.update(sample.ids.tobytes())
        digest.update(sample.is_reply.tobytes())
        if sample.question_start is not None:
            digest.update(f"question {sample.question_start};".encode())
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


def length_batches(samples: Sequence[Sample], seed: int, size: int) -> Iterator[list[Sample]]:
    """Yield endless batches of samples with similar lengths, which saves padding.

    Args:
        samples: All samples; each is used once per pass.
        seed: Seed of the order.
        size: Samples per batch; the last batches may have fewer.
    """
    rng = random.Random(seed)
    order = list(samples)
    window_size = size * _BATCHES_OF_A_WINDOW
    while True:
        rng.shuffle(order)
        batches = []
        for window_start in range(0, len(order), window_size):
            window = _by_length(order[window_start : window_start + window_size])
            for start in range(0, len(window), size):
                batches.append(window[start : start + size])
        rng.shuffle(batches)
        yield from batches


def _by_length(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples from the shortest to the longest, with moves and answers spread evenly.

    Answers to questions differ in length from moves. With batches of only one kind, the model would
    learn to move in one step and to answer in the next.
    """
    moves = [sample for sample in samples if sample.question_start is None]
    answers = [sample for sample in samples if sample.question_start is not None]
    ranked = []
    for kind in (moves, answers):
        kind.sort(key=lambda sample: len(sample.ids))
        for rank, sample in enumerate(kind):
            ranked.append(((rank + 0.5) / len(kind), sample))
    ranked.sort(key=lambda pair: pair[0])
    return [sample for _, sample in ranked]


def padded(batch: Sequence[Sample]) -> tuple[Any, Any]:
    """Return ids and reply marks of a batch as tensors, padded with zeros on the right.

    Attention is causal, so no real token ever sees the padding, and no mask is needed.

    Returns:
        Ids, int64, and marks, bool; both of shape (rows, tokens of the longest row).
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(sample.ids) for sample in batch]
    marks = [torch.tensor(sample.is_reply, dtype=torch.bool) for sample in batch]
    return pad_sequence(ids, batch_first=True), pad_sequence(marks, batch_first=True)


def reply_logits(model: Any, ids: Any, is_reply: Any) -> tuple[Any, Any]:
    """Return the logits that predict the marked tokens, and the ids of these tokens.

    The head and the last layer's feed-forward part only see the marked positions. Shared prefixes
    are computed once if the model supports it, see `training.model.shared_prefixes`.

    Args:
        model: The model.
        ids: From `padded`, (rows, tokens).
        is_reply: From `padded`, (rows, tokens).

    Returns:
        Logits, (marked tokens, vocabulary), and ids, (marked tokens,).
    """
    from torch.nn.functional import embedding

    from hanabi_grpo.training.model import shared_prefixes
    from hanabi_grpo.training.model.prefix_tree import prefix_tree

    # The logits at a position predict the next token.
    marked = is_reply[:, 1:]
    targets = ids[:, 1:][marked]
    tree = prefix_tree(ids, marked) if shared_prefixes.shares_prefixes(model) else None
    [logits], nodes = shared_prefixes.reply_logits(model, model, ids, marked, tree)
    if nodes is not None:
        # One node may predict the tokens of several rows.
        logits = embedding(nodes, logits)
    return logits, targets


def num_exact_replies(logits: Any, targets: Any, is_reply: Any) -> tuple[int, int]:
    """Count the replies whose every token is the most likely one.

    Greedy sampling reproduces such a reply after the same conversation. A run of consecutive marked
    tokens is one reply.

    Args:
        logits: From `reply_logits`.
        targets: From `reply_logits`.
        is_reply: From `padded`.

    Returns:
        The number of such replies, and the number of all replies.
    """
    marked = is_reply[:, 1:]
    is_first_token = marked & ~is_reply[:, :-1]
    reply_numbers = is_first_token.flatten().cumsum(0)[marked.flatten()]
    is_wrong = logits.argmax(-1) != targets
    num_wrong = reply_numbers[is_wrong].unique().numel()
    num_replies = int(reply_numbers[-1]) if reply_numbers.numel() else 0
    return num_replies - num_wrong, num_replies
