"""HANABI_NORMALIZE and HANABI_NORMALIZE_OVER: normalization independent of the estimator.

An estimator assigns each turn a credit (`Estimator.credits`) and compares these credits as in its
paper. The two settings override that comparison: `Over` chooses which credits are compared,
`Method` chooses how.

Source: `reward_normalization` of ROLL and MARSHAL. Their `grouping` (state, tags, batch) is `Over`
(group, environment, step), and their `method` (identity, mean, mean_std) is `Method`. Their
`asym_clip` is HANABI_ADVANTAGE_CLIP, which is applied afterwards.
"""

from collections.abc import Sequence
from enum import StrEnum

from hanabi_grpo.training.estimators.arithmetic import deviation, divisor, mean

_FLAT = 1e-6
"""Deviation below which credits count as equal."""


class Over(StrEnum):
    """Which of a player's credits are compared with each other: HANABI_NORMALIZE_OVER."""

    GROUP = "group"
    """The episodes of a group: NUM_GENERATIONS episodes that were played together."""
    TASK = "task"
    """All episodes of the same task, across groups: a dataset may repeat a task, and partners may
    take other seats."""
    ENVIRONMENT = "environment"
    """All of a step's episodes on the same board."""
    STEP = "step"
    """All of a step's episodes, whatever the reward scale of their board."""


class Method(StrEnum):
    """How credits are normalized: the values of HANABI_NORMALIZE."""

    NONE = "none"
    """x, unchanged."""
    MEAN = "mean"
    """x − mean."""
    STD = "std"
    """x / (std + ε)."""
    MEAN_STD = "mean_std"
    """(x − mean) / (std + ε)."""

    @property
    def is_centered(self) -> bool:
        """True if the mean is subtracted."""
        return self in (Method.MEAN, Method.MEAN_STD)

    @property
    def is_divided(self) -> bool:
        """True if the credits are divided by the standard deviation."""
        return self in (Method.STD, Method.MEAN_STD)


def normalize(
    values: Sequence[Sequence[float]], method: Method, *, once_a_game: bool
) -> list[list[float]]:
    """Normalize credits with each other.

    Args:
        values: The credits of one player's turns, per episode; an episode without turns does not
            count.
        method: The method of HANABI_NORMALIZE.
        once_a_game: Count each episode once, by its first turn, for estimators that give all turns
            of an episode the same credit; else count each turn.
    """
    counted: list[float] = []
    for game in values:
        counted.extend(game[:1] if once_a_game else game)
    center = mean(counted) if method.is_centered else 0.0
    scale = divisor(counted, method.is_divided)
    if not method.is_centered and deviation(counted) < _FLAT:
        # Divided by a deviation of 0, equal credits would be the largest of the step.
        scale = 1.0
    return [[(value - center) / scale for value in game] for game in values]
