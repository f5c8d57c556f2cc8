"""Hanabi's figures of a step: points that a bomb leaves, bombs, hints, and how the trained seats play."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.dynamics import dynamics_figures
from hanabi_grpo.types import SHARED_ADAPTER, Episode


def step_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return figures per game over all seats, and those of `dynamics` over the seats that a run's own players hold.

    `score_kept/mean` are the points on the table, kept on a bomb; `hints_per_game` counts hints that were given, also
    in place of a bad reply.
    """
    if not episodes:
        return {}
    own = [""] * max(episode.num_players for episode in episodes)
    for episode in episodes:
        for player, word in enumerate(episode.seats):
            # Partners are scripts, the base model and frozen adapters.
            if word.startswith(("player_", f"{SHARED_ADAPTER}@")):
                own[player] = word
    turns = [turn for episode in episodes for turn in episode.turns]
    return {
        "score_kept/mean": sum(episode.result["score_kept"] for episode in episodes) / len(episodes),
        "bombs_per_game": sum(episode.result["bombed"] for episode in episodes) / len(episodes),
        "hints_per_game": sum(turn.action.startswith("Hint") for turn in turns) / len(episodes),
        **dynamics_figures([episodes], own),
    }
