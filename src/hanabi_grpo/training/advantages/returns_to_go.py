"""Each turn's return-to-go, summed first and normalised then, per player over the step (MARSHAL)."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, divisor, mean
from hanabi_grpo.types import Episode


def returns_to_go(episodes: Sequence[Episode], player: int) -> Values:
    """Return what a player receives from each own turn on, that turn included: the sum over later moves of all players.

    What happened before a turn is not in its return.
    """
    found: Values = []
    for episode in episodes:
        total = 0.0
        backwards: list[float] = []
        for one in reversed(episode.turns):
            total += one.reward(player)
            if one.player == player:
                backwards.append(total)
        found.append(backwards[::-1])
    return found


def to_go(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return G_it − mean G for turn t of game i; scaled (G_it − mean G) / (std G + ε).

    G_it is the return-to-go without discount. Mean and standard deviation are over all turns of this player in the
    step. It equals GAE with γ = λ = 1 and that mean in the place of a value function. The mean is one number for early
    and late turns, so early turns, which have more to come, lie above it on average: that is variance, not bias.

    Source: MARSHAL (arXiv 2510.15414), turn-level advantage estimator (sum, then normalise) with agent-specific
    normalisation over the batch; it subtracts the mean and does not divide.
    """
    values = returns_to_go(episodes, player)
    flat = [value for game in values for value in game]
    centre, scale = mean(flat), divisor(flat, scaled)
    return [[(value - centre) / scale for value in game] for game in values]


return_to_go = Estimator(name="return_to_go", formula=to_go, pool="step", scaled=False)
