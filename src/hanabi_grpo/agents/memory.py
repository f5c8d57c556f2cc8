"""What a player remembers of its past turns (HANABI_MEMORY)."""

from collections.abc import Sequence
from typing import TypeVar

_Turn = TypeVar("_Turn")


def remembered_turns(turns: Sequence[_Turn], memory: int | None) -> Sequence[_Turn]:
    """Return the past turns that a player sees beside its next one.

    Args:
        turns: All its past turns, oldest first.
        memory: Turns that it sees at once, the next one included; None: all.

    Example:
        remembered_turns(["a", "b", "c"], memory=2) == ["c"]
    """
    if memory is None:
        return turns
    first = max(0, len(turns) + 1 - memory)
    return turns[first:]
