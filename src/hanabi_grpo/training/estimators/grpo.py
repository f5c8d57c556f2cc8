"""GRPO: the whole game's return among the group's."""

from hanabi_grpo.training.estimators.base import (
    Estimator,
    Pool,
)


class Grpo(Estimator):
    """(R_i − mean R) / (std R + ε) for every turn of game i; unscaled R_i − mean R.

    Source: DeepSeekMath (arXiv 2402.03300), outcome supervision, section 4.1.2; without the
    division it is the advantage of Dr. GRPO (arXiv 2503.20783).
    """

    name = "grpo"
    credit = "the whole game's return"
    compared_with = "its group: the mean"
    source = "DeepSeekMath, arXiv 2402.03300; unscaled Dr. GRPO, arXiv 2503.20783"
    pool = Pool.GROUP
    divides_by_deviation = True
    discounts = True
