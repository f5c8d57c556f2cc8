"""GRPO: the return of the whole game, normalised within the group."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, centred, playing, spread_over_turns
from hanabi_grpo.types import Episode


def group_relative(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return (R_i − mean R) / (std R + ε) for every turn of game i; unscaled R_i − mean R.

    R_i is the player's undiscounted return of game i: what the team received, and its own parts. Mean and standard
    deviation are over the games of the group in which the player had a turn.

    Source: DeepSeekMath (arXiv 2402.03300), outcome supervision, section 4.1.2; without the division it is the
    advantage of Dr. GRPO (arXiv 2503.20783).
    """
    games = playing(episodes, player)
    return spread_over_turns(
        episodes, player, games, centred([episodes[index].reward(player) for index in games], scaled)
    )


grpo = Estimator(name="grpo", formula=group_relative, pool="group", scaled=True)
