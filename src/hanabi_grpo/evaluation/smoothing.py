"""Smoothed curves."""

from collections.abc import Sequence


def trailing_mean(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and those before it, `width` in all; of as many as there are at the start.

    So the end of a line is the mean of the last steps; a centred mean would end in one step.

    Example:
        trailing_mean([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 1.5, 3.0, 4.0]
    """
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]
