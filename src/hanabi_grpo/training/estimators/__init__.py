"""Estimators of HANABI_ADVANTAGE: how much better a turn was than its alternatives.

One class in one file each. `base` says what an estimator is, `arithmetic` is what they share, and
this file finds the others by itself: to add an estimator, add a file with a subclass of
`Estimator`. The settings' choices, the checks of what goes together and the table in
docs/learning.md follow from the registry.

Nothing here imports torch or another package above `hanabi_grpo.types`, so that the settings, a
lower room than `training`, can read the registry.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    EstimatorOptions,
    EstimatorState,
    Learned,
    LearnedValues,
    Pool,
    Scale,
    TurnValues,
)
from hanabi_grpo.training.estimators.normalization import Method, Over

__all__ = [
    "DISCOUNTED",
    "ESTIMATORS",
    "GROUP_ESTIMATORS",
    "NOTHING_KNOWN",
    "Estimator",
    "EstimatorContext",
    "EstimatorOptions",
    "EstimatorState",
    "Learned",
    "LearnedValues",
    "Method",
    "Over",
    "Pool",
    "Scale",
    "TurnValues",
    "estimators_table",
    "make_estimator",
    "names_needing",
]


def _find_estimators() -> Mapping[str, type[Estimator]]:
    """Import every file of this package and return its estimators by name.

    They come in an order that file names do not decide: those that compare within a group, those
    that compare over a step, those with something learned; each kind by name.
    """
    classes: list[type[Estimator]] = []
    for module_info in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
        module = importlib.import_module(module_info.name)
        for _, member in inspect.getmembers(module, inspect.isclass):
            is_own = member.__module__ == module.__name__
            if is_own and issubclass(member, Estimator) and member is not Estimator:
                classes.append(member)
    classes.sort(key=_sort_key)
    return MappingProxyType({member.name: member for member in classes})


def _sort_key(estimator: type[Estimator]) -> tuple[int, int, str]:
    kinds_of_learning = list(Learned)
    pools = list(Pool)
    return (
        kinds_of_learning.index(estimator.needs),
        pools.index(estimator.pool),
        estimator.name,
    )


ESTIMATORS: Mapping[str, type[Estimator]] = _find_estimators()
"""By name, the values of HANABI_ADVANTAGE."""
GROUP_ESTIMATORS: tuple[str, ...] = tuple(
    name for name, estimator in ESTIMATORS.items() if not estimator.learns_from_flat_groups()
)
"""Those to which a group whose games all earned the same teaches nothing."""
DISCOUNTED: tuple[str, ...] = tuple(
    name for name, estimator in ESTIMATORS.items() if estimator.discounts
)
"""Those that read HANABI_GAMMA."""


_TABLE_HEAD = (
    "`HANABI_ADVANTAGE`",
    "a turn's credit",
    "compared with",
    "divided by the deviation",
    "source",
)


def make_estimator(
    name: str,
    *,
    scale: Scale | None = None,
    gae_lambda: float = 1.0,
    gamma: float = 1.0,
    normalize: Method | None = None,
    normalize_over: Over | None = None,
) -> Estimator:
    """Return the estimator of a run.

    Args:
        name: HANABI_ADVANTAGE.
        scale: HANABI_ADVANTAGE_SCALE; None: as the estimator's source does.
        gae_lambda: HANABI_GAE_LAMBDA, which estimators with a critic read.
        gamma: HANABI_GAMMA, which the `DISCOUNTED` ones read.
        normalize: HANABI_NORMALIZE; None: as the estimator's source does.
        normalize_over: HANABI_NORMALIZE_OVER; None: as the estimator's source does.

    Raises:
        SettingsError: There is no estimator of this name.
    """
    if name not in ESTIMATORS:
        raise SettingsError(
            f"HANABI_ADVANTAGE={name}: no such estimator; allowed are {', '.join(ESTIMATORS)}."
        )
    options = EstimatorOptions(
        scale=scale,
        gae_lambda=gae_lambda,
        gamma=gamma,
        normalize=normalize,
        normalize_over=normalize_over,
    )
    return ESTIMATORS[name](options)


def names_needing(*needs: Learned) -> tuple[str, ...]:
    """Return the names of the estimators for which one of these has to be learned."""
    return tuple(name for name, estimator in ESTIMATORS.items() if estimator.needs in needs)


def estimators_table() -> str:
    """Return the Markdown table of all estimators, as docs/learning.md has it."""
    lines = [f"| {' | '.join(_TABLE_HEAD)} |", f"|{'---|' * len(_TABLE_HEAD)}"]
    for name, estimator in ESTIMATORS.items():
        label = f"`{name}`"
        if estimator.is_experimental:
            label += " (experimental)"
        divided = "yes" if estimator.divides_by_deviation else "no"
        cells = [label, estimator.credit, estimator.compared_with, divided, estimator.source]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
