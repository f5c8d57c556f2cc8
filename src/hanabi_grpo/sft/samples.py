"""One player's conversation in one game as ids, and which starts are held out."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.errors import SettingsError

HELD_OUT_SHARE = 0.1
"""Of the different starts; no sample of theirs is learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A conversation up to its last learned reply.

    Example:
        Sample(player=1, start=0x9F3C…, ids=array("i", [1, 5, …]), is_reply=array("b", [0, 0, …, 1, 1, 1]))
    """

    player: int
    start: int
    """A hash of the game's start, in Hanabi of the deck; it decides whether the game is held out."""
    ids: "array[int]"
    is_reply: "array[int]"
    """As long as `ids`: 1 for each token of a reply that is learned, its end token included."""


def split_held_out(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples to learn from and those of held-out starts.

    The starts with the lowest hashes are held out, so the same start is on the same side whatever its seed, its players
    or the file that it came from.

    Raises:
        SettingsError: All samples are of one start.
    """
    starts = sorted({sample.start for sample in samples})
    if len(starts) < 2:
        raise SettingsError(
            f"warm-start: the games have {len(starts)} start(s) with something to learn; at least 2 are needed, one to "
            "learn from and one held out. Raise --deals, give more games, or filter less."
        )
    last = starts[max(1, round(HELD_OUT_SHARE * len(starts))) - 1]
    taught = [sample for sample in samples if sample.start > last]
    return taught, [sample for sample in samples if sample.start <= last]


def data_digest(samples: Sequence[Sample]) -> str:
    """Return a short sha256 over every id and mark: equal digests mean that the same is learned."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.player} {sample.start} {len(sample.ids)};".encode())
        digest.update(sample.ids.tobytes())
        digest.update(sample.is_reply.tobytes())
    return digest.hexdigest()[:16]
