"""What a player remembers of its past turns (HANABI_MEMORY)."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.types import Reply


class _PastTurn(Protocol):
    """A message that a player got, and its reply."""

    @property
    def follows_call(self) -> bool:
        """Whether the message is the result of a tool that the previous reply called."""


_Turn = TypeVar("_Turn", bound=_PastTurn)


def remembered_turns(
    turns: Sequence[_Turn], memory: int | None, *, is_continued: bool = False
) -> Sequence[_Turn]:
    """Return the past turns that a player sees beside its next one, each with its tool calls.

    Args:
        turns: All its past turns, oldest first; what follows a call is part of the turn before.
        memory: Number of turns that it sees at once, including the next one; None: all.
        is_continued: Whether the next message follows a call as well, so that the last past turn
            is not over yet.

    Example:
        remembered_turns([first, second, third], memory=2) == [third]
    """
    if memory is None:
        return turns
    begins = [index for index, turn in enumerate(turns) if not turn.follows_call]
    num_past = memory - 1 + is_continued
    if num_past == 0:
        return turns[len(turns) :]
    if num_past >= len(begins):
        return turns
    return turns[begins[-num_past] :]


def remembered_requests(
    past: Sequence[EarlierTurn], memory: int | None, *, is_continued: bool
) -> tuple[EarlierTurn, ...]:
    """Return the past turns for a `ReplyRequest`, see `remembered_turns`."""
    return tuple(remembered_turns(past, memory, is_continued=is_continued))


def past_turn(request: ReplyRequest, reply: Reply) -> EarlierTurn:
    """Return a turn in the form that later requests send it."""
    return EarlierTurn(
        prompt=request.prompt, reply_ids=reply.reply_ids, follows_call=request.follows_call
    )
