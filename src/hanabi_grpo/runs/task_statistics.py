"""Means over tasks, their errors and their differences, clustered by start.

A task is one observation. Where a suite has only some of an environment's starts, tasks that share
one say little about the others: errors that took them for independent would be too small. So tasks
of one start are one cluster; where all starts differ, the formulas are the usual ones."""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError

RESAMPLES = 2000
COVERAGE = 0.95
_BOOTSTRAP_SEED = 20240229
_BLOCK = (
    1 << 21
)  # Draws that are held at once, so that memory does not grow with the number of tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean or a difference, its error, and its 95 % interval from `low` to `high`; NaN: not known
    from so few.
    """

    mean: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Interval):
    """A mean over tasks, or of differences task by task: the error is clustered by start, the
    interval bootstrapped.
    """

    num_tasks: int
    num_starts: int
    """Clusters: the number of independent observations."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found = asdict(self)
        interval = [found.pop("low"), found.pop("high")]
        return {**found, "interval_95": interval}

    @property
    def sigmas(self) -> float:
        """The mean in standard errors; infinite when every task has the same value, 0 when all are
        0.
        """
        if self.standard_error == 0:
            return 0.0 if self.mean == 0 else float("inf") if self.mean > 0 else float("-inf")
        return self.mean / self.standard_error


@functools.lru_cache(maxsize=256)
def estimate(values: tuple[float, ...], starts: tuple[int, ...]) -> Estimate:
    """Return the mean with its cluster-robust standard error and percentile bootstrap interval.

    With tasks i in C starts c, the error is sqrt(C / (C-1) * sum_c (sum_{i in c} (x_i - mean))^2) /
    n, the sandwich estimator of a mean with its small-sample factor (Cameron and Miller, A
    Practitioner's Guide to Cluster-Robust Inference, 2015, section II). The interval resamples
    whole starts with replacement and takes percentiles of the means (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13), with a fixed seed. Both take the starts for a
    sample of endlessly many, which is on the safe side where nearly all are played.

    Takes a finite value and the number of its start for each task. Fewer than two starts are a
    SettingsError."""
    numbers, clusters = np.unique(np.asarray(starts), return_inverse=True)
    if len(numbers) < 2:
        raise SettingsError(
            f"{len(values)} task(s) with {len(numbers)} start(s): a mean with an error needs at "
            "least 2 starts; play "
            "more tasks."
        )
    mean, error, excess = clustered_error(np.asarray(values, dtype=np.float64), clusters)
    shifts = _resampled_means(excess, np.bincount(clusters).astype(np.float64))
    tail = (1 - COVERAGE) / 2
    low, high = (float(mean + shift) for shift in np.quantile(shifts, (tail, 1 - tail)))
    return Estimate(
        mean=mean,
        standard_error=error,
        low=low,
        high=high,
        num_tasks=len(values),
        num_starts=len(numbers),
    )


def clustered_error(
    values: NDArray[Any], clusters: NDArray[Any]
) -> tuple[float, float, NDArray[Any]]:
    """Return the mean, its cluster-robust standard error (see `estimate`), and each cluster's sum
    of deviations.

    Args: values: (n,), one per task. clusters: (n,), number of its start, 0 to C-1 without gaps;
        with fewer than two the error is NaN.
    """
    mean = float(values.mean())
    excess = np.bincount(clusters, weights=values - mean)
    count = len(excess)
    if count < 2:
        return mean, float("nan"), excess
    return mean, float(np.sqrt(count / (count - 1) * np.square(excess).sum())) / len(values), excess


def difference(before: Sequence[float], after: Sequence[float], starts: Sequence[int]) -> Estimate:
    """Return the mean of `after - before`, task by task; see `estimate`."""
    return estimate(tuple(b - a for a, b in zip(before, after, strict=True)), tuple(starts))


def _resampled_means(sums: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    count = len(sums)
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    rows = max(1, _BLOCK // count)
    means = []
    for start in range(0, RESAMPLES, rows):
        drawn = rng.integers(count, size=(min(rows, RESAMPLES - start), count), dtype=np.int32)
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    return np.concatenate(means)
