"""GRPO: the episode's return compared with the group's returns."""

from hanabi_grpo.training.estimators.base import (
    Estimator,
    Pool,
)


class Grpo(Estimator):
    """(R_i − mean R) / (std R + ε) for every turn of episode i; unscaled R_i − mean R.

    Source: DeepSeekMath (arXiv 2402.03300), outcome supervision, section 4.1.2; without the
    division it is the advantage of Dr. GRPO (arXiv 2503.20783).
    """

    name = "grpo"
    credit = "return of the whole episode"
    compared_with = "the group's mean"
    source = "DeepSeekMath, arXiv 2402.03300; unscaled Dr. GRPO, arXiv 2503.20783"
    pool = Pool.GROUP
    divides_by_deviation = True
    discounts = True
