"""How a cost grows with size: the slope of its logarithm over the size's logarithm.

1 is proportional, 2 quadratic.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from hanabi_grpo.errors import SettingsError


def log_slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the least-squares slope of log(cost) over log(size).

    Args:
        sizes: At least two different ones, above 0.
        costs: One per size, above 0.

    Raises:
        SettingsError: Fewer than two sizes, or a number without a logarithm.
    """
    if len(sizes) != len(costs) or len(set(sizes)) < 2:
        raise SettingsError(
            f"slope over sizes {list(sizes)}: needs at least two different sizes with a cost each."
        )
    if not all(math.isfinite(value) and value > 0 for value in (*sizes, *costs)):
        raise SettingsError(
            f"slope of {list(costs)} over {list(sizes)}: every number must be above 0."
        )
    log_sizes = [math.log(size) for size in sizes]
    log_costs = [math.log(cost) for cost in costs]
    return statistics.linear_regression(log_sizes, log_costs).slope


def slopes(rounds: Sequence[Mapping[float, float]]) -> tuple[float, ...]:
    """Return one slope per round of {size: cost}."""
    return tuple(log_slope(list(costs), list(costs.values())) for costs in rounds)
