"""The files of a cross-play: figures as JSON, the heat map as a picture, and a page with tables."""

import math
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hanabi_grpo.evaluation.crossplay.summary import (
    Summary,
    all_sheets,
    describe,
    seat_titles,
    summary_json,
)
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.sheets import UNKNOWN
from hanabi_grpo.report.charts.canvas import data_address, make_figure, save_figure
from hanabi_grpo.report.page import render
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.runs.run_folder import save_text
from hanabi_grpo.texts import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JSON = "cross_play.json"
PICTURE = "heat_map.png"
PAGE = "cross_play.html"
_CELL_INCHES = 0.82
_LEAST_SIDE = 3.2
"""Inches of a small matrix."""
_LABEL_INCHES = 2.7
"""Room for labels beside the matrix, and below it where they are rotated."""
_FLAT_LABEL_INCHES = 1.9
"""Room for labels below the matrix where they are not rotated."""
_LONGEST_FLAT_LABEL = 10
"""Characters; labels below the matrix are rotated where one is longer."""
_LABEL_WRAP = 24
"""Characters of a label's line."""
_MAX_LABEL_LINES = 3
_ERRORS_UP_TO = 24
"""Number of entries up to which cells have room for a second line."""
_LARGEST_FONT = 12.0
_CHARACTERS_PER_INCH = 11
"""Characters of the heading per inch."""
_UNPLAYED = "#d9d9d9"
"""Colour of cells that were not played."""


def write_cross_play(folder: Path, summary: Summary) -> list[Path]:
    """Write JSON, picture and page of a cross-play, finished or not.

    Returns:
        The files.

    Raises:
        SettingsError: A file cannot be written.
    """
    json_path = folder / JSON
    picture_path = folder / PICTURE
    page_path = folder / PAGE
    write_document(json_path, summary_json(summary))
    save_figure(heat_map(summary), picture_path)
    save_text(page_path, render_cross_play(summary))
    return [json_path, picture_path, page_path]


def render_cross_play(summary: Summary) -> str:
    """Return the page."""
    entries = []
    for entry in summary.plan.entries:
        entries.append(replace(entry, label=visible(entry.label)))
    plan = replace(summary.plan, entries=tuple(entries))
    summary = replace(summary, plan=plan)
    return render(
        "cross_play.html.j2",
        lines=describe(summary),
        picture=data_address(heat_map(summary)),
        sheets=all_sheets(summary),
    )


def heat_map(summary: Summary) -> "Figure":
    """Draw mean ± standard error of every cell, on the colour scale of the game's score range.

    In competitive games the second line has wins/draws/losses of the row in percent instead.
    """
    num_entries = len(summary.labels)
    names = [_wrapped(label) for label in summary.labels]
    is_rotated = max(map(len, names)) > _LONGEST_FLAT_LABEL
    side = max(_CELL_INCHES * num_entries, _LEAST_SIDE)
    width = side + _LABEL_INCHES
    height = side + (_LABEL_INCHES if is_rotated else _FLAT_LABEL_INCHES)
    figure = make_figure(width, height)
    axes = figure.subplots()
    low, high = score_range(summary.plan.setup.spec)
    means = np.ma.masked_invalid(summary.matrix.means)
    image = axes.imshow(means, cmap="viridis", vmin=low, vmax=high)
    axes.set_facecolor(_UNPLAYED)
    font_size = min(_LARGEST_FONT, 6.0 * side / num_entries + 5.0)
    _write_cells(axes, summary, font_size=font_size)
    ticks = range(num_entries)
    rotation = 90 if is_rotated else 0
    axes.set_xticks(ticks, names, rotation=rotation, fontsize=9.5, parse_math=False)
    axes.set_yticks(ticks, names, fontsize=9.5, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    rows, columns = seat_titles(summary)
    axes.set_xlabel(columns, labelpad=8)
    axes.set_ylabel(rows, labelpad=8)
    heading: list[str] = []
    for line in describe(summary):
        heading += textwrap.wrap(line, int(_CHARACTERS_PER_INCH * width))
    figure.suptitle("\n".join(heading), fontsize=10.5, x=0.01, ha="left", parse_math=False)
    scale_name = "return of the row; below: its wins/draws/losses in percent"
    if summary.plan.is_team:
        scale_name = "mean score"
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02, label=scale_name)
    bar.outline.set_visible(False)
    return figure


def _write_cells(axes: "Axes", summary: Summary, *, font_size: float) -> None:
    """Write the text of every cell, dark on bright and bright on dark."""
    low, high = score_range(summary.plan.setup.spec)
    for (row, column), mean in np.ndenumerate(summary.matrix.means):
        # The bright half of viridis begins at its middle.
        is_bright = not math.isfinite(mean) or mean > (low + high) / 2
        axes.text(
            column,
            row,
            _cell_text(summary, row, column),
            ha="center",
            va="center",
            fontsize=0.9 * font_size,
            color="black" if is_bright else "white",
            fontweight="bold" if row == column else "normal",
        )


def _cell_text(summary: Summary, row: int, column: int) -> str:
    """Return the mean, with its error or the outcomes in a second line."""
    estimate = summary.matrix.cell(row, column)
    if not math.isfinite(estimate.mean):
        return UNKNOWN
    text = f"{estimate.mean:.2f}"
    if not math.isfinite(estimate.error) or len(summary.labels) > _ERRORS_UP_TO:
        return text
    percents = [f"{share:.0f}" for share in summary.outcomes(row, column)]
    second_line = "/".join(percents) if percents else f"±{estimate.error:.2f}"
    return f"{text}\n{second_line}"


def _wrapped(label: str) -> str:
    """Return a label in a few lines; a long label is cut at its beginning."""
    # Paths have no blanks at which a line could be broken.
    with_blanks = label.replace("/", "/ ")
    lines = []
    for line in textwrap.wrap(with_blanks, _LABEL_WRAP):
        lines.append(line.replace("/ ", "/"))
    if len(lines) > _MAX_LABEL_LINES:
        end = "…" + label[-(_LABEL_WRAP - 1) :]
        lines = [*lines[: _MAX_LABEL_LINES - 1], end]
    return "\n".join(lines)
