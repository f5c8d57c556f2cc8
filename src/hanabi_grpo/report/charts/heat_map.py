"""A matrix of mean scores as a picture, and the colours of scores: one scale of viridis for picture and page."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.report.charts.canvas import make_figure, save_figure

NUM_COLORS = 33
"""Classes of colours on a page; finer steps than the eye tells apart in a table."""
DARK, LIGHT = "#000000", "#ffffff"
"""Of the two the better one has a contrast of at least 4.5 on any colour, which WCAG asks for."""
_CELL_INCHES = 0.82
_WRAP = 24
"""Characters of a label's line."""
_MAX_LINES = 3
_ERRORS_UP_TO = 24
"""Entries; with more the cells are too small for a second line."""
_PER_INCH = 11
"""Characters of the heading."""
_MISSING = "#d9d9d9"


def draw_heat_map(
    path: Path,
    means: Sequence[Sequence[float]],
    errors: Sequence[Sequence[float]],
    labels: Sequence[str],
    *,
    limits: tuple[float, float],
    title: str,
    row_title: str,
    column_title: str,
    note: str = "",
) -> None:
    """Draw mean ± standard error of every cell and write a PNG; its folder is made where it is missing.

    `means` are rows of mean scores (NaN: not played), `errors` of the same shape, `labels` those of rows and columns.
    The colours go from the first to the second of `limits`; `note` is small text below.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    count = len(labels)
    names = [_wrapped(label) for label in labels]
    side = max(_CELL_INCHES * count, 3.2)
    size = min(12.0, 6.0 * side / count + 5.0)
    figure = make_figure(side + 3.6, side + 2.7)
    axes = figure.subplots()
    axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), aspect="equal")
    for i in range(count):
        for j in range(count):
            mean, error = means[i][j], errors[i][j]
            known = math.isfinite(mean)
            color = color_at((mean - limits[0]) / (limits[1] - limits[0])) if known else _MISSING
            axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=color, edgecolor="white", linewidth=1))
            if not known:
                axes.text(j, i, "–", ha="center", va="center", fontsize=size, color="#555555")
                continue
            show_error = math.isfinite(error) and count <= _ERRORS_UP_TO
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": ink_on(color)}
            place: dict[str, Any] = {"xy": (j, i), "textcoords": "offset points"}
            weight = "bold" if i == j else "normal"
            up, down = (0.5 * size, -0.75 * size) if show_error else (0.0, 0.0)
            axes.annotate(f"{mean:.2f}", xytext=(0, up), fontsize=size, fontweight=weight, **style, **place)
            if show_error:
                spread = f"±{error:.2f}" if error < 10 else f"±{error:.1f}"
                axes.annotate(spread, xytext=(0, down), fontsize=0.78 * size, **style, **place)
    long = any(len(name) > 10 for name in labels)
    axes.set_xticks(range(count), names, rotation=90 if long else 0, va="top", ha="center", fontsize=9.5)
    axes.set_yticks(range(count), names, fontsize=9.5)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(column_title, labelpad=8)
    axes.set_ylabel(row_title, labelpad=8)
    heading = [part for line in title.splitlines() for part in textwrap.wrap(line, int(_PER_INCH * (side + 3.6)))]
    figure.suptitle("\n".join(heading), fontsize=10.5, x=0.01, ha="left", parse_math=False)
    scale = ScalarMappable(Normalize(*limits), "viridis")
    bar = figure.colorbar(scale, ax=axes, shrink=0.8, aspect=24, pad=0.02)
    bar.set_label(f"mean score, {limits[0]:g} to {limits[1]:g}")
    bar.outline.set_visible(False)
    if note:
        figure.supxlabel(note, fontsize=8, color="#555555", x=0.01, ha="left", parse_math=False)
    save_figure(figure, path)


def _wrapped(label: str) -> str:
    # Folders are joined without a blank to break at.
    lines = [line.replace("/ ", "/") for line in textwrap.wrap(label.replace("/", "/ "), _WRAP)] or [""]
    return "\n".join(lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], "…" + label[-(_WRAP - 1) :]])


def color_at(position: float) -> str:
    """Return the colour "#rrggbb" at a position from 0 (dark) to 1 (bright); others are moved to the nearer end."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["viridis"](min(max(position, 0.0), 1.0)))


def ink_on(color: str) -> str:
    """Return the colour of text on a background "#rrggbb": the one of `DARK` and `LIGHT` with more contrast."""
    return max((DARK, LIGHT), key=lambda ink: contrast(color, ink))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2.1 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
