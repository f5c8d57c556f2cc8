"""Means over training seeds and their differences, with Student's t.

A run is one observation: figures of one run say nothing about how another seed would have fared. Few seeds have wide
intervals (with three, the 95 % interval is 4.3 standard errors to each side), and that is what is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from hanabi_grpo.runs.deal_statistics import COVERAGE

MIN_SEEDS_FOR_T = 3
"""Least runs for which a curve gets a t interval; that of two is 12.7 standard errors to each side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedEstimate:
    """A mean over seeds, or a difference of two of them, with its 95 % t interval; NaN: not known from so few seeds."""

    mean: float
    standard_error: float
    low: float
    high: float


def over_seeds(values: Sequence[float]) -> SeedEstimate:
    """Return the mean of k figures, one per run: error s / sqrt(k), k - 1 degrees of freedom; NaN with one run."""
    count = len(values)
    if count < 2:
        return _estimate(fmean(values), math.nan, math.nan)
    return _estimate(fmean(values), variance(values) / count, count - 1)


def welch_difference(first: Sequence[float], other: Sequence[float]) -> SeedEstimate:
    """Return mean(other) - mean(first) of two groups of runs whose variances may differ.

    With a = s1^2 / k1 and b = s2^2 / k2 the error is sqrt(a + b), the degrees of freedom
    (a + b)^2 / (a^2 / (k1 - 1) + b^2 / (k2 - 1)): B. L. Welch, The generalization of "Student's" problem when several
    different population variances are involved, Biometrika 34(1-2), 1947.

    Args:
        first: (k1,), one figure per run.
        other: (k2,); with fewer than two runs in either, error and interval are NaN.
    """
    gap = fmean(other) - fmean(first)
    if min(len(first), len(other)) < 2:
        return _estimate(gap, math.nan, math.nan)
    a, b = variance(first) / len(first), variance(other) / len(other)
    weight = a**2 / (len(first) - 1) + b**2 / (len(other) - 1)
    return _estimate(gap, a + b, (a + b) ** 2 / weight if weight else math.inf)


def t_reach(degrees: float) -> float:
    """Return how many standard errors a 95 % t interval reaches to each side."""
    # SciPy comes with open_spiel; its import takes a while.
    from scipy.special import stdtrit

    return float(stdtrit(min(degrees, 1e9), (1 + COVERAGE) / 2))


def _estimate(mean: float, squared_error: float, degrees: float) -> SeedEstimate:
    error = math.sqrt(squared_error)
    reach = t_reach(degrees) * error
    return SeedEstimate(mean=mean, standard_error=error, low=mean - reach, high=mean + reach)
