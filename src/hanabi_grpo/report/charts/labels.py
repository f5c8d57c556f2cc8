"""Names beside the right end of lines, moved apart where they would overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAP = 0.042
"""Least distance of two lines of labels, in heights of axes of 6 inches."""
_INCHES = 6.0
_WRAP = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """The name of one line."""

    text: str
    y: float
    """Where the line ends, in data units."""
    color: str
    bold: bool = False


def write_labels(axes: "Axes", labels: Sequence[Label], *, inches: float = _INCHES) -> None:
    """Write names beside the right end of axes so many inches high, whose limits must be final."""
    low, high = axes.get_ylim()
    ordered = sorted(labels, key=lambda label: label.y)
    texts = [fill(label.text, _WRAP) for label in ordered]
    heights = [(label.y - low) / (high - low) for label in ordered]
    sizes = [_GAP * _INCHES / inches * (text.count("\n") + 1) for text in texts]
    for label, text, height, place in zip(ordered, texts, heights, spread(heights, sizes), strict=True):
        axes.annotate(
            text, xy=(1.0, height), xytext=(1.035, place), xycoords="axes fraction",
            textcoords="axes fraction", color=label.color, va="center", ha="left", fontsize=10, parse_math=False,
            fontweight="bold" if label.bold else "normal", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": label.color, "linewidth": 0.8, "shrinkA": 1, "shrinkB": 0,
                "relpos": (0.0, 0.5),
            },
        )  # fmt: skip


def spread(heights: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Return centres of labels between 0 and 1 that do not overlap, as near to their heights as can be, in their order.

    Labels that touch form a block; a block stands at the mean of what its labels ask for, which is the least-squares
    place (pool adjacent violators). Labels that do not fit reach beyond 1.

    `heights` is where labels should stand, ascending; `sizes` are their heights.

    Example:
        spread([0.5, 0.5], [0.1, 0.1]) == [0.45, 0.55]
    """
    # Per block its start, and the starts that its labels ask for.
    blocks: list[tuple[float, list[float]]] = []
    offsets: list[float] = []
    total = 0.0
    for size in sizes:
        offsets.append(total + size / 2)
        total += size
    for height, offset in zip(heights, offsets, strict=True):
        blocks.append((height - offset, [height - offset]))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            wishes = blocks[-2][1] + blocks[-1][1]
            blocks[-2:] = [(sum(wishes) / len(wishes), wishes)]
    highest = max(0.0, 1.0 - total)
    starts = [min(max(start, 0.0), highest) for start, wishes in blocks for _ in wishes]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]
