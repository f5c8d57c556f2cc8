"""Advantage estimators of HANABI_ADVANTAGE: how much better a turn was than its alternatives.

Each estimator is one class in one file. `base` defines the interface, `arithmetic` holds shared
code, and this file discovers all estimators automatically: to add one, add a file with a subclass
of `Estimator`. The settings' choices, the checks of incompatible settings and the table in
docs/learning.md are derived from the registry.

Nothing here imports torch or a package above `hanabi_grpo.types`, so that the settings, which are a
lower layer than `training`, can read the registry.
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

    The order does not depend on file names: first the estimators that compare within a group, then
    those that compare over a step, then those that need something learned; each kind by name.
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
"""All estimators by name, which is the value of HANABI_ADVANTAGE."""
GROUP_ESTIMATORS: tuple[str, ...] = tuple(
    name for name, estimator in ESTIMATORS.items() if not estimator.learns_from_flat_groups()
)
"""Estimators that learn nothing from a group whose episodes all have the same return."""
DISCOUNTED: tuple[str, ...] = tuple(
    name for name, estimator in ESTIMATORS.items() if estimator.discounts
)
"""Estimators that read HANABI_GAMMA."""


_TABLE_HEAD = (
    "`HANABI_ADVANTAGE`",
    "credit of a turn",
    "baseline",
    "divided by the standard deviation",
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
        scale: HANABI_ADVANTAGE_SCALE; None: as in the estimator's source.
        gae_lambda: HANABI_GAE_LAMBDA, read by estimators with a critic.
        gamma: HANABI_GAMMA, read by the `DISCOUNTED` estimators.
        normalize: HANABI_NORMALIZE; None: as in the estimator's source.
        normalize_over: HANABI_NORMALIZE_OVER; None: as in the estimator's source.

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
    """Return the names of the estimators that need one of these to be learned."""
    return tuple(name for name, estimator in ESTIMATORS.items() if estimator.needs in needs)


def estimators_table() -> str:
    """Return the Markdown table of all estimators that docs/learning.md contains."""
    lines = [f"| {' | '.join(_TABLE_HEAD)} |", f"|{'---|' * len(_TABLE_HEAD)}"]
    for name, estimator in ESTIMATORS.items():
        label = f"`{name}`"
        if estimator.is_experimental:
            label += " (experimental)"
        divided = "yes" if estimator.divides_by_deviation else "no"
        cells = [label, estimator.credit, estimator.compared_with, divided, estimator.source]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
