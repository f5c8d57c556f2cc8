"""Curves smoothed, and thinned."""

from collections.abc import Sequence
from itertools import pairwise


def trailing_mean(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and those before it, `width` in all; of as many as there are at
    the start.

    So the end of a line is the mean of the last steps; a centred mean would end in one step.

    Example:
        trailing_mean([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 1.5, 3.0, 4.0]
    """
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def bin_means(values: Sequence[float], number: int) -> list[float]:
    """Return the means of at most `number` bins of equal width.

    Example:
        bin_means([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    """
    count = min(number, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
