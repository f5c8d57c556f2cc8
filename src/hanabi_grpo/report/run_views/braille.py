"""Curves of characters: braille dots for a plot, blocks for a line of one row. rich has neither."""

from collections.abc import Sequence
from itertools import pairwise

_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille character, by column and row from above (Unicode, block "Braille Patterns")."""
_BLOCKS = "▁▂▃▄▅▆▇█"


def braille_curve(points: Sequence[tuple[float, float]], width: int, height: int, low: float, high: float) -> list[str]:
    """Return a curve of points (x, y), x ascending, as `height` lines of `width` characters of 2 x 4 dots.

    Neighbouring points are joined. Values outside `low` to `high`, the edges, are drawn there.

    Example:
        braille_curve([(0, 0.0), (1, 1.0)], 2, 1, 0.0, 1.0) == ["⡠⠊"]
    """
    cells = [[0] * width for _ in range(height)]
    columns, rows = 2 * width - 1, 4 * height - 1
    span = (points[-1][0] - points[0][0]) if points else 0.0
    dots = []
    for x, y in points:
        share = (y - low) / (high - low) if high > low else 0.5
        place = round((x - points[0][0]) / span * columns) if span > 0 else 0
        dots.append((place, round((1 - min(max(share, 0.0), 1.0)) * rows)))
    for before, now in pairwise(dots[:1] + dots):
        steps = max(abs(now[0] - before[0]), abs(now[1] - before[1]), 1)
        for step in range(1, steps + 1):
            column, row = (round(a + (b - a) * step / steps) for a, b in zip(before, now, strict=True))
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    return ["".join(chr(_BLANK + cell) for cell in line) for line in cells]


def spark_line(values: Sequence[float], width: int) -> str:
    """Return one row of blocks from the lowest to the highest value; of more values than characters, means.

    Example:
        spark_line([0.0, 7.0], 8) == "▁█"
    """
    if not values or width < 1:
        return ""
    means = bin_means(values, width)
    low, high = min(means), max(means)
    if high <= low:
        return _BLOCKS[0] * len(means)
    return "".join(_BLOCKS[round((mean - low) / (high - low) * (len(_BLOCKS) - 1))] for mean in means)


def bin_means(values: Sequence[float], number: int) -> list[float]:
    """Return the means of at most `number` bins of equal width.

    Example:
        bin_means([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    """
    count = min(number, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
