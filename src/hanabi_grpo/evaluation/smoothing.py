"""Smoothing and thinning of curves."""

from collections.abc import Sequence
from itertools import pairwise


def trailing_mean(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and those before it.

    The last value is then the mean of the last steps; a centered mean would end in one step.

    Args:
        values: The curve.
        width: Number of values in a mean; the first means use fewer.

    Example:
        trailing_mean([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 1.5, 3.0, 4.0]
    """
    means = []
    for end in range(1, len(values) + 1):
        window = values[max(0, end - width) : end]
        means.append(sum(window) / len(window))
    return means


def recent_means(steps: Sequence[float], values: Sequence[float], num_steps: float) -> list[float]:
    """Return for each value the mean over the last steps up to its own.

    Args:
        steps: The step of each value, ascending; some may have none.
        values: The curve.
        num_steps: Number of steps in a mean.

    Example:
        recent_means([0, 1, 20], [0.0, 3.0, 6.0], 10) == [0.0, 1.5, 6.0]
    """
    means = []
    first = 0
    for last, step in enumerate(steps):
        while steps[first] <= step - num_steps:
            first += 1
        recent = values[first : last + 1]
        means.append(sum(recent) / len(recent))
    return means


def bin_means(values: Sequence[float], number: int) -> list[float]:
    """Return the means of at most `number` bins of equal width.

    Example:
        bin_means([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    """
    num_bins = min(number, len(values))
    edges = [index * len(values) // num_bins for index in range(num_bins + 1)]
    means = []
    for start, end in pairwise(edges):
        means.append(sum(values[start:end]) / (end - start))
    return means
