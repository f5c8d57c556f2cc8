"""How often players call tools, and with what results."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from hanabi_grpo.types import CallError, Episode, ToolCall

CALLS_PER_TURN = "tools/calls_per_turn"
FIGURES_OF_TURNS = (CALLS_PER_TURN, "tools/turn_share", "tools/over_limit_per_turn")
"""Figures over all turns."""
SHARES_OF_CALLS = ("tools/error_share", "tools/timeout_share")
"""Figures over all calls."""


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


def figures_of_tasks(
    figures: Sequence[Mapping[str, float]], num_turns: Sequence[float]
) -> dict[str, float]:
    """Return the `tool_figures` of several tasks together, as if their games were one list.

    A task counts as often as it has turns or calls, so that figures are of all turns or all calls.
    Figures without any turn or call are left out.

    Args:
        figures: Per task, the figures of its games, see `tool_figures`.
        num_turns: Per task, the number of its turns, or the mean number of turns of its games if
            every task has the same number of games.

    Example:
        figures_of_tasks(
            [
                {"tools/calls_per_turn": 1.5, "tools/error_share": 1.0},
                {"tools/calls_per_turn": 0.5, "tools/error_share": 0.0},
            ],
            [2, 6],
        ) == {"tools/calls_per_turn": 0.75, "tools/error_share": 0.5}
    """
    num_calls = []
    for task, turns in zip(figures, num_turns, strict=True):
        num_calls.append(task.get(CALLS_PER_TURN, 0.0) * turns)
    together = {}
    for names, counts in ((FIGURES_OF_TURNS, num_turns), (SHARES_OF_CALLS, num_calls)):
        for name in names:
            mean = _weighted_mean(name, figures, counts)
            if mean is not None:
                together[name] = mean
    return together


def _weighted_mean(
    name: str, figures: Sequence[Mapping[str, float]], counts: Sequence[float]
) -> float | None:
    """Return the mean of a figure over the tasks that have it; None if these count nothing.

    Args:
        name: The figure.
        figures: Per task, its figures.
        counts: Per task, how often it counts.
    """
    total = 0.0
    num_counted = 0.0
    for task, count in zip(figures, counts, strict=True):
        if name in task:
            total += task[name] * count
            num_counted += count
    return total / num_counted if num_counted else None
