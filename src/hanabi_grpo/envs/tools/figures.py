"""How often players call tools, and with what results."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from hanabi_grpo.types import CallError, Episode, ToolCall

CALLS_PER_TURN = "tools/calls_per_turn"
SHARES_OF_CALLS = ("tools/error_share", "tools/timeout_share")
"""Figures over all calls; the others are over all turns."""


def tool_figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the figures of some episodes; {} if there are no turns.

    Over all turns: `tools/calls_per_turn`, `tools/turn_share` (turns with a call) and
    `tools/over_limit_per_turn` (replies with a call when no call was left). Over all calls:
    `tools/error_share` (calls without a result, for any reason) and `tools/timeout_share`; both are
    absent if there are no calls.
    """
    calls: list[ToolCall] = []
    num_turns = 0
    num_with_call = 0
    num_over_limit = 0
    for episode in episodes:
        for turn in episode.turns:
            if turn.is_call and turn.call is not None:
                calls.append(turn.call)
                continue
            num_turns += 1
            num_with_call += turn.follows_call
            num_over_limit += turn.call is not None
    if not num_turns:
        return {}
    figures = {
        CALLS_PER_TURN: len(calls) / num_turns,
        "tools/turn_share": num_with_call / num_turns,
        "tools/over_limit_per_turn": num_over_limit / num_turns,
    }
    if calls:
        figures["tools/error_share"] = fmean(call.error is not None for call in calls)
        figures["tools/timeout_share"] = fmean(call.error is CallError.TIMEOUT for call in calls)
    return figures


def shares_of_calls(
    figures: Sequence[Mapping[str, float]], num_turns: Sequence[float]
) -> dict[str, float]:
    """Return `SHARES_OF_CALLS` over the calls of several tasks; {} if there are no calls.

    A task counts as often as it has calls, so that a share is one of all calls.

    Args:
        figures: Per task, the figures of its games, see `tool_figures`.
        num_turns: Per task, the number of its turns, or the mean number of turns of its games if
            every task has the same number of games.

    Example:
        shares_of_calls(
            [
                {"tools/calls_per_turn": 1.5, "tools/error_share": 1.0},
                {"tools/calls_per_turn": 0.5, "tools/error_share": 0.0},
            ],
            [2, 2],
        ) == {"tools/error_share": 0.75}
    """
    shares = {}
    for name in SHARES_OF_CALLS:
        num_calls = 0.0
        num_with_property = 0.0
        for task, turns in zip(figures, num_turns, strict=True):
            if name in task:
                calls = task[CALLS_PER_TURN] * turns
                num_calls += calls
                num_with_property += task[name] * calls
        if num_calls:
            shares[name] = num_with_property / num_calls
    return shares
