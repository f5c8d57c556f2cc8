"""Means over deals, their errors and their differences, clustered by deck.

A deal is one observation. Where a suite is one half of a board's decks, deals may share a deck and say little about the
other decks: errors that took them for independent would be too small. So deals of one deck are one cluster; where all
decks differ, the formulas are the usual ones. A suite that deals all decks of a board has no others to speak for: its
deals are independent draws of the very game that the score is about, each one a cluster.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs.hanabi.rules import GameSpec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.deals import deals_halves
from hanabi_grpo.errors import SettingsError

RESAMPLES = 2000
COVERAGE = 0.95
_BOOTSTRAP_SEED = 20240229
_BLOCK = 1 << 21
"""Draws that are held at once, so that memory does not grow with the number of deals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over deals, or a mean of differences deal by deal."""

    mean: float
    standard_error: float
    """Clustered by deck."""
    low: float
    """Lower end of the 95 % bootstrap interval."""
    high: float
    num_deals: int
    num_decks: int
    """Different decks among the deals: the number of independent observations."""

    @property
    def sigmas(self) -> float:
        """The mean in standard errors; infinite when every deal has the same value, 0 when all are 0."""
        if self.standard_error == 0:
            return 0.0 if self.mean == 0 else float("inf") if self.mean > 0 else float("-inf")
        return self.mean / self.standard_error


@functools.lru_cache(maxsize=8)
def deck_numbers(spec: GameSpec, suite: str, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each deal the number of its cluster, counted from 0 in order of appearance: see the module."""
    if not deals_halves(spec, suite):
        return tuple(range(len(seeds)))
    numbers: dict[bytes, int] = {}
    decks = (bytes(c.color * spec.num_ranks + c.rank for c in shuffled_deck(spec, suite, seed)) for seed in seeds)
    return tuple(numbers.setdefault(deck, len(numbers)) for deck in decks)


@functools.lru_cache(maxsize=256)
def estimate(values: tuple[float, ...], decks: tuple[int, ...]) -> Estimate:
    """Return the mean with its cluster-robust standard error and percentile bootstrap interval.

    With deals i in C decks c, the error is sqrt(C / (C-1) * sum_c (sum_{i in c} (x_i - mean))^2) / n, the sandwich
    estimator of a mean with its small-sample factor (Cameron and Miller, A Practitioner's Guide to Cluster-Robust
    Inference, 2015, section II). The interval resamples whole decks with replacement and takes percentiles of the means
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13), with a fixed seed. Both take the decks
    for a sample of endlessly many, which is on the safe side for boards whose decks are nearly all played.

    Args:
        values: One per deal, finite.
        decks: The deck of each deal, any numbers.

    Raises:
        SettingsError: Fewer than two decks, or not one deck per value.
    """
    if len(values) != len(decks):
        raise SettingsError(f"{len(values)} values for {len(decks)} deals: give one of each per deal.")
    numbers, clusters = np.unique(np.asarray(decks), return_inverse=True)
    num_decks = len(numbers)
    if num_decks < 2:
        raise SettingsError(
            f"{len(values)} deal(s) with {num_decks} deck(s): a mean with an error needs at least 2 decks; play more "
            "deals."
        )
    data = np.asarray(values, dtype=np.float64)
    mean, error, excess = clustered_error(data, clusters)
    sizes = np.bincount(clusters).astype(np.float64)
    shifts = _resampled_means(excess, sizes)
    tail = (1 - COVERAGE) / 2
    low, high = (float(mean + shift) for shift in np.quantile(shifts, (tail, 1 - tail)))
    return Estimate(mean=mean, standard_error=error, low=low, high=high, num_deals=len(data), num_decks=num_decks)


def clustered_error(values: NDArray[Any], clusters: NDArray[Any]) -> tuple[float, float, NDArray[Any]]:
    """Return the mean, its cluster-robust standard error (see `estimate`), and each cluster's sum of deviations.

    Args:
        values: (n,), one per deal.
        clusters: (n,), number of its deck, 0 to C-1 without gaps; with fewer than two the error is NaN.
    """
    mean = float(values.mean())
    excess = np.bincount(clusters, weights=values - mean)
    count = len(excess)
    if count < 2:
        return mean, float("nan"), excess
    return mean, float(np.sqrt(count / (count - 1) * np.square(excess).sum())) / len(values), excess


def difference(before: Sequence[float], after: Sequence[float], decks: Sequence[int]) -> Estimate:
    """Return the mean of `after - before`, deal by deal; see `estimate`."""
    return estimate(tuple(b - a for a, b in zip(before, after, strict=True)), tuple(decks))


def _resampled_means(sums: NDArray[Any], sizes: NDArray[Any]) -> NDArray[Any]:
    """Return the means of resampled clusters, given each cluster's sum and number of deals."""
    count = len(sums)
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    rows = max(1, _BLOCK // count)
    uneven = sizes.min() != sizes.max()
    means = []
    for start in range(0, RESAMPLES, rows):
        drawn = rng.integers(count, size=(min(rows, RESAMPLES - start), count), dtype=np.int32)
        total = sums[drawn].sum(axis=1)
        means.append(total / (sizes[drawn].sum(axis=1) if uneven else sizes[0] * count))
    return np.concatenate(means)
