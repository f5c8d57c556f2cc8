"""REINFORCE++: the episode's return, normalized over all turns of the step."""

from hanabi_grpo.training.estimators.base import (
    Estimator,
    Pool,
)


class ReinforcePp(Estimator):
    """(R_i − μ) / (σ + ε) for every turn of episode i; unscaled R_i − μ.

    μ and σ are over all turns of this player in the step, each with the return of its episode. The
    source counts tokens instead, and has a KL term in the reward.

    Source: REINFORCE++ (arXiv 2501.03262v9), global advantage normalization.
    """

    name = "reinforce_pp"
    credit = "return of the whole episode"
    compared_with = "the mean over the step's turns"
    source = "REINFORCE++, arXiv 2501.03262"
    pool = Pool.STEP
    divides_by_deviation = True
    once_a_game = False
    discounts = True
