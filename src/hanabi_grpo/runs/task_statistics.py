"""Means over tasks, their errors and their differences, clustered by start.

A task is one observation. If a suite has only some of an environment's starts, tasks with the same
start are correlated, and errors computed as if they were independent would be too small. So tasks
with the same start form a cluster; if all starts differ, the formulas are the usual ones.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError

RESAMPLES = 2000
"""Bootstrap samples of an interval."""
COVERAGE = 0.95
"""Share of the bootstrap means that an interval covers."""
MIN_TASKS_PER_START = 2
"""Minimum number of tasks per start if all starts are played: with one there is no error."""
MIN_STARTS = 2
"""Minimum number of clusters: with fewer there is no error."""
_NORMAL_QUANTILE = 1.959964
"""Half-width of a 95 % interval in standard errors."""
_ROUNDING = 1e-9
"""A smaller standard error, relative to a mean of 1 or more, is a rounding error."""
_BOOTSTRAP_SEED = 20240229
_BLOCK = 1 << 21
"""Bootstrap draws held at once, so that memory does not grow with the number of tasks."""
_CACHED_ESTIMATES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean or a difference with its error and 95 % interval; NaN: too few observations."""

    mean: float
    standard_error: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def is_exact(self) -> bool:
        """Whether the value has no error at all because no chance is involved."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Interval):
    """A mean over tasks, or over differences paired by task.

    The error is clustered by start, the interval bootstrapped.
    """

    num_tasks: int
    num_starts: int
    """Clusters: the number of independent observations."""
    covers_all_starts: bool = False
    """Whether all starts were played, see `estimate_of_all_starts`."""
    is_sampled: bool = False
    """Whether replies were drawn, so that tasks may agree by chance."""

    @property
    def is_exact(self) -> bool:
        """See `Interval.is_exact`."""
        return self.covers_all_starts and not self.is_sampled and self.standard_error == 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, with the interval as a list "interval_95"."""
        row = asdict(self)
        if not self.covers_all_starts:
            row.pop("covers_all_starts")
        row.pop("is_sampled")
        low = row.pop("low")
        high = row.pop("high")
        return {**row, "interval_95": [low, high]}

    @property
    def has_variation(self) -> bool:
        """Whether tasks differ, so that their variation shows how far off the mean may be."""
        return self.standard_error > _ROUNDING * max(1.0, abs(self.mean))

    @property
    def sigmas(self) -> float:
        """The mean in standard errors; NaN if tasks do not differ and so have no standard error."""
        return self.mean / self.standard_error if self.has_variation else math.nan

    def within(self, least: float, greatest: float) -> "Estimate":
        """Return the estimate with its interval cut to a range.

        The mean stays in the interval, even where it is beyond the range.
        """
        low = min(self.mean, max(self.low, least))
        high = max(self.mean, min(self.high, greatest))
        return replace(self, low=low, high=high)


@functools.lru_cache(maxsize=_CACHED_ESTIMATES)
def estimate(values: tuple[float, ...], starts: tuple[int, ...]) -> Estimate:
    """Return the mean with its cluster-robust standard error and percentile bootstrap interval.

    With tasks i in C starts c, the error is sqrt(C / (C-1) * sum_c (sum_{i in c} (x_i - mean))^2) /
    n, the sandwich estimator of a mean with its small-sample factor (Cameron and Miller, A
    Practitioner's Guide to Cluster-Robust Inference, 2015, section II). The interval resamples
    whole starts with replacement and takes percentiles of the means (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13), with a fixed seed. Both treat the starts as a
    sample of an infinite population, which is conservative where nearly all are played.

    Args:
        values: One finite value per task.
        starts: For each task the number of its start.

    Raises:
        SettingsError: There are fewer than two starts.
    """
    start_numbers, clusters = np.unique(np.asarray(starts), return_inverse=True)
    num_starts = len(start_numbers)
    check_num_starts(len(values), num_starts)
    task_values = np.asarray(values, dtype=np.float64)
    mean, error, deviation_sums = clustered_error(task_values, clusters)
    cluster_sizes = np.bincount(clusters).astype(np.float64)
    shifts = _resampled_means(deviation_sums, cluster_sizes)
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(shifts, (tail, 1 - tail))
    return Estimate(
        mean=mean,
        standard_error=error,
        low=float(mean + low),
        high=float(mean + high),
        num_tasks=len(values),
        num_starts=num_starts,
    )


def check_num_starts(num_tasks: int, num_starts: int) -> None:
    """Refuse tasks with too few starts for a mean with a standard error.

    Raises:
        SettingsError: There are fewer than two starts.
    """
    if num_starts < MIN_STARTS:
        raise SettingsError(
            f"{num_tasks} task(s) with {num_starts} start(s): a mean with an error needs at "
            f"least {MIN_STARTS} starts; play more tasks."
        )


def estimate_of_all_starts(
    values: Sequence[float], starts: Sequence[int], *, is_sampled: bool = False
) -> Estimate:
    """Return the mean over all starts, each played equally often.

    The choice of starts then adds no variance. What remains is the variance within a start: with m
    tasks in each of C starts and the variance s_c^2 of start c, the error is sqrt(sum_c s_c^2 / m)
    / C, that of a stratified mean (Cochran, Sampling Techniques, 1977, section 5.3). The interval
    is normal. It is exact, without an error, if all tasks of each start have the same value and no
    reply was drawn.

    Args:
        values: One finite value per task.
        starts: For each task the number of its start.
        is_sampled: Whether replies were drawn.

    Raises:
        SettingsError: Starts were played once, or not equally often.
    """
    _, clusters = np.unique(np.asarray(starts), return_inverse=True)
    counts = np.bincount(clusters)
    if counts.min() < MIN_TASKS_PER_START or counts.min() != counts.max():
        raise SettingsError(
            f"{len(values)} tasks of {len(counts)} starts, {counts.min()} to {counts.max()} of "
            f"each: a standard error needs the same number of each start, {MIN_TASKS_PER_START} or "
            "more; evaluate again with --all-starts."
        )
    task_values = np.asarray(values, dtype=np.float64)
    num_per_start = counts[0]
    means = np.bincount(clusters, weights=task_values) / num_per_start
    squares = np.bincount(clusters, weights=np.square(task_values - means[clusters]))
    variances = squares / (num_per_start - 1)
    mean = float(means.mean())
    error = float(np.sqrt(variances.sum() / num_per_start)) / len(counts)
    half_width = _NORMAL_QUANTILE * error
    return Estimate(
        mean=mean,
        standard_error=error,
        low=mean - half_width,
        high=mean + half_width,
        num_tasks=len(values),
        num_starts=len(counts),
        covers_all_starts=True,
        is_sampled=is_sampled,
    )


def clustered_error(
    values: NDArray[Any], clusters: NDArray[Any]
) -> tuple[float, float, NDArray[Any]]:
    """Compute a mean and its cluster-robust standard error, see `estimate`.

    Args:
        values: (n,), one per task.
        clusters: (n,), number of each task's start, 0 to C-1 without gaps.

    Returns:
        The mean; its error, NaN with fewer than two clusters; and (C,) each cluster's sum of
        deviations from the mean.
    """
    mean = float(values.mean())
    deviation_sums = np.bincount(clusters, weights=values - mean)
    num_clusters = len(deviation_sums)
    if num_clusters < MIN_STARTS:
        return mean, math.nan, deviation_sums
    small_sample_factor = num_clusters / (num_clusters - 1)
    squares = np.square(deviation_sums).sum()
    error = float(np.sqrt(small_sample_factor * squares)) / len(values)
    return mean, error, deviation_sums


def difference(
    before: Sequence[float],
    after: Sequence[float],
    starts: Sequence[int],
    *,
    covers_all_starts: bool = False,
    is_sampled: bool = False,
) -> Estimate:
    """Return the mean of `after - before`, paired by task.

    See `estimate`, or `estimate_of_all_starts` if all starts were played.
    """
    changes = []
    for value_before, value_after in zip(before, after, strict=True):
        changes.append(value_after - value_before)
    if covers_all_starts:
        return estimate_of_all_starts(changes, starts, is_sampled=is_sampled)
    return estimate(tuple(changes), tuple(starts))


def _resampled_means(sums: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    """Return the means of `RESAMPLES` samples of whole clusters, drawn with replacement.

    Args:
        sums: (C,), sum of each cluster's values.
        sizes: (C,), number of each cluster's values.
    """
    num_clusters = len(sums)
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    rows_per_block = max(1, _BLOCK // num_clusters)
    means = []
    for start in range(0, RESAMPLES, rows_per_block):
        num_rows = min(rows_per_block, RESAMPLES - start)
        shape = (num_rows, num_clusters)
        drawn = generator.integers(num_clusters, size=shape, dtype=np.int32)
        totals = sums[drawn].sum(axis=1)
        means.append(totals / sizes[drawn].sum(axis=1))
    return np.concatenate(means)
