"""How often players call tools, and with what results."""

from collections.abc import Sequence
from statistics import fmean

from hanabi_grpo.types import CallError, Episode, ToolCall


def tool_figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the figures of some episodes; {} if there are no turns.

    Over all turns: `tools/calls_per_turn`, `tools/turn_share` (turns with a call) and
    `tools/over_limit_per_turn` (replies with a call when no call was left). Over all calls:
    `tools/error_share` (calls without a result, for any reason) and `tools/timeout_share`; both are
    0 if there are no calls.
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
    errors = [call.error is not None for call in calls] or [False]
    timeouts = [call.error is CallError.TIMEOUT for call in calls] or [False]
    return {
        "tools/calls_per_turn": len(calls) / num_turns,
        "tools/turn_share": num_with_call / num_turns,
        "tools/over_limit_per_turn": num_over_limit / num_turns,
        "tools/error_share": fmean(errors),
        "tools/timeout_share": fmean(timeouts),
    }
