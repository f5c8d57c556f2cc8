"""What a player remembers of its past turns (HANABI_MEMORY)."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.types import Reply

_Turn = TypeVar("_Turn")


def _follows_nothing(turn: Any) -> bool:
    return False


def remembered_turns(
    turns: Sequence[_Turn],
    memory: int | None,
    *,
    follows: Callable[[_Turn], bool] = _follows_nothing,
    is_continued: bool = False,
) -> Sequence[_Turn]:
    """Return the past turns that a player sees beside its next one.

    Args:
        turns: All its past turns, oldest first.
        memory: Turns that it sees at once, the next one included; None: all.
        follows: Tells of an entry that it is no turn of its own: its message is the result of a
            tool that the entry before it has called.
        is_continued: Whether the next message is such a result, too, so that the last of the turns
            is the one that is not over.

    Example:
        remembered_turns(["a", "b", "c"], memory=2) == ["c"]
    """
    if memory is None:
        return turns
    begins = [index for index, turn in enumerate(turns) if not follows(turn)]
    num_past = memory - 1 + is_continued
    if num_past == 0:
        return turns[len(turns) :]
    if num_past >= len(begins):
        return turns
    return turns[begins[-num_past] :]


def remembered_requests(
    past: Sequence[EarlierTurn], memory: int | None, *, is_continued: bool
) -> tuple[EarlierTurn, ...]:
    """Return what a `ReplyRequest` has to say of the past, see `remembered_turns`."""
    return tuple(remembered_turns(past, memory, follows=_follows_call, is_continued=is_continued))


def past_turn(request: ReplyRequest, reply: Reply) -> EarlierTurn:
    """Return a turn as later requests name it."""
    return EarlierTurn(
        prompt=request.prompt, reply_ids=reply.reply_ids, follows_call=request.follows_call
    )


def _follows_call(turn: EarlierTurn) -> bool:
    return turn.follows_call
