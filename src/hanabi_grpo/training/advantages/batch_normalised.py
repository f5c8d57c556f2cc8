"""REINFORCE++: the return of the whole game, normalised over the step."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, divisor, mean
from hanabi_grpo.types import Episode


def batch_normalised(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return (R_i − μ) / (σ + ε) for every turn of game i; unscaled R_i − μ.

    R_i is as in GRPO. μ and σ are mean and standard deviation of R over all turns of this player in the step, each turn
    with the return of its game: a game counts as often as it has turns. The source counts tokens instead, which is the
    same where replies are equally long, and has a KL term in the reward.

    Its variant "w/ baseline", which subtracts the group's mean first, is HANABI_ADVANTAGE=grpo with
    HANABI_ADVANTAGE_SCALE=none and HANABI_WHITEN=true.

    Source: REINFORCE++ (arXiv 2501.03262v9), global advantage normalisation.
    """
    values = [[episode.reward(player)] * len(episode.trajectory(player)) for episode in episodes]
    flat = [value for game in values for value in game]
    centre, scale = mean(flat), divisor(flat, scaled)
    return [[(value - centre) / scale for value in game] for game in values]


reinforce_pp = Estimator(name="reinforce_pp", formula=batch_normalised, pool="step", scaled=True)
