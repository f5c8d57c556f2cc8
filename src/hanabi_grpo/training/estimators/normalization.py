"""HANABI_NORMALIZE and HANABI_NORMALIZE_OVER: normalisation as a choice of its own.

An estimator says what a turn is credited with (`Estimator.credits`) and compares these credits as
its paper does. With one of the two settings the credits are compared as the settings say instead:
`Over` is with which, `Method` is how.

Source: ROLL's and MARSHAL's `reward_normalization`, whose `grouping` (state, tags, batch) is `Over`
(group, environment, step) and whose `method` (identity, mean, mean_std) is `Method`. Their
`asym_clip` is HANABI_ADVANTAGE_CLIP behind it.
"""

from collections.abc import Sequence
from enum import StrEnum

from hanabi_grpo.training.estimators.arithmetic import divisor, mean


class Over(StrEnum):
    """Whose credits one player's credits are compared with, values of HANABI_NORMALIZE_OVER."""

    GROUP = "group"
    """Those of the group: NUM_GENERATIONS episodes that were played together."""
    TASK = "task"
    """All episodes of the same task, also of several groups: where a dataset repeats a task, or
    partners take other seats."""
    ENVIRONMENT = "environment"
    """All of a step's episodes on the same board."""
    STEP = "step"
    """All of a step's episodes, whatever their board pays."""


class Method(StrEnum):
    """What becomes of credits that are compared, values of HANABI_NORMALIZE."""

    NONE = "none"
    """They stay as they are."""
    MEAN = "mean"
    """x − mean."""
    STD = "std"
    """x / (std + ε)."""
    MEAN_STD = "mean_std"
    """(x − mean) / (std + ε)."""

    @property
    def is_centered(self) -> bool:
        """True where the mean is subtracted."""
        return self in (Method.MEAN, Method.MEAN_STD)

    @property
    def is_divided(self) -> bool:
        """True where the deviation divides."""
        return self in (Method.STD, Method.MEAN_STD)


def normalize(
    values: Sequence[Sequence[float]], method: Method, *, once_a_game: bool
) -> list[list[float]]:
    """Return credits after a method, among each other.

    Args:
        values: Per game the credits of one player's turns; games without a turn enter no mean.
        method: Of HANABI_NORMALIZE.
        once_a_game: A game counts once, by its first turn, for estimators that credit all turns of
            a game alike; else each turn counts.
    """
    counted: list[float] = []
    for game in values:
        counted.extend(game[:1] if once_a_game else game)
    center = mean(counted) if method.is_centered else 0.0
    scale = divisor(counted, method.is_divided)
    return [[(value - center) / scale for value in game] for game in values]
