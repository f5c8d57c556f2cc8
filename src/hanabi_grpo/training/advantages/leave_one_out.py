"""RLOO: a game against the mean of the other games of its group."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, divisor, playing, spread_over_turns
from hanabi_grpo.types import Episode


def leave_one_out(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return R_i − 1/(K − 1) Σ_{j≠i} R_j for every turn of game i; scaled, divided by (std R + ε).

    The K games are those of the group in which the player had a turn; R is as in GRPO. The baseline of a game does not
    contain the game, so the gradient is unbiased while nothing is divided. It is K/(K − 1) times R_i − mean R. A game
    without others gets 0.

    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; for language models Ahmadian et al.
    (arXiv 2402.14740), the RLOO estimator.
    """
    games = playing(episodes, player)
    returns = [episodes[index].reward(player) for index in games]
    others = len(returns) - 1
    scale = divisor(returns, scaled)
    values = [
        (value - (sum(returns[:place]) + sum(returns[place + 1 :])) / others) / scale if others else 0.0
        for place, value in enumerate(returns)
    ]
    return spread_over_turns(episodes, player, games, values)


rloo = Estimator(name="rloo", formula=leave_one_out, pool="group", scaled=False)
