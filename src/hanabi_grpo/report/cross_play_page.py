"""The files of a cross-play: figures as JSON, the heat map as a picture, and a page of it and the
tables.
"""

import math
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.evaluation.crossplay.summary import (
    Summary,
    all_sheets,
    describe,
    seat_titles,
    summary_json,
)
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.report.charts.canvas import data_address, make_figure, save_figure
from hanabi_grpo.report.page import render
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.runs.run_folder import save_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JSON, PICTURE, PAGE = "cross_play.json", "heat_map.png", "cross_play.html"
_CELL_INCHES = 0.82
_WRAP, _MAX_LINES = 24, 3
"""Characters of a label's line, and its lines."""
_ERRORS_UP_TO = 24
"""Entries; with more the cells are too small for a second line."""
_PER_INCH = 11
"""Characters of the heading."""


def write_cross_play(folder: Path, summary: Summary) -> list[Path]:
    """Write JSON, picture and page, finished or not, and return the files; a SettingsError: one
    cannot be written.
    """
    paths = [folder / name for name in (JSON, PICTURE, PAGE)]
    write_document(paths[0], summary_json(summary))
    save_figure(heat_map(summary), paths[1])
    save_text(paths[2], render_cross_play(summary))
    return paths


def render_cross_play(summary: Summary) -> str:
    """Return the page."""
    entries = tuple(replace(entry, label=visible(entry.label)) for entry in summary.plan.entries)
    summary = replace(summary, plan=replace(summary.plan, entries=entries))
    lines, sheets = describe(summary), all_sheets(summary)
    return render(
        "cross_play.html.j2", lines=lines, picture=data_address(heat_map(summary)), sheets=sheets
    )


def heat_map(summary: Summary) -> "Figure":
    """Return mean ± standard error of every cell as a picture, from the least to the most points of
    the game.

    In games against each other the second line is wins/draws/losses of the row in percent instead.
    """
    labels, estimates = summary.labels, summary.estimates
    low, high = score_range(summary.plan.setup.spec)
    names = [_wrapped(label) for label in labels]
    side = max(_CELL_INCHES * len(labels), 3.2)
    size = min(12.0, 6.0 * side / len(labels) + 5.0)
    turned = 90 if any(len(name) > 10 for name in labels) else 0
    figure = make_figure(side + 2.7, side + (2.7 if turned else 1.9))
    axes = figure.subplots()
    image = axes.imshow(
        np.ma.masked_invalid(summary.matrix.means), cmap="viridis", vmin=low, vmax=high
    )
    axes.set_facecolor("#d9d9d9")
    for (i, j), mean in np.ndenumerate(summary.matrix.means):
        error = estimates[i][j].error
        text = f"{mean:.2f}" if math.isfinite(mean) else "–"
        if math.isfinite(error) and len(labels) <= _ERRORS_UP_TO:
            text += "\n" + (
                "/".join(f"{share:.0f}" for share in summary.outcomes(i, j)) or f"±{error:.2f}"
            )
        # The bright half of viridis begins at its middle.
        ink = "black" if not math.isfinite(mean) or mean > (low + high) / 2 else "white"
        weight = "bold" if i == j else "normal"
        axes.text(
            j, i, text, ha="center", va="center", fontsize=0.9 * size, color=ink, fontweight=weight
        )
    axes.set_xticks(range(len(labels)), names, rotation=turned, fontsize=9.5, parse_math=False)
    axes.set_yticks(range(len(labels)), names, fontsize=9.5, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    rows, columns = seat_titles(summary)
    axes.set_xlabel(columns, labelpad=8)
    axes.set_ylabel(rows, labelpad=8)
    heading = [
        part
        for line in describe(summary)
        for part in textwrap.wrap(line, int(_PER_INCH * (side + 2.7)))
    ]
    figure.suptitle("\n".join(heading), fontsize=10.5, x=0.01, ha="left", parse_math=False)
    named = (
        "mean score"
        if summary.plan.is_team
        else "return of the row; below: its wins/draws/losses in percent"
    )
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02, label=named)
    bar.outline.set_visible(False)
    return figure


def _wrapped(label: str) -> str:
    # Folders are joined without a blank to break at.
    lines = [
        line.replace("/ ", "/") for line in textwrap.wrap(label.replace("/", "/ "), _WRAP)
    ] or [""]
    return "\n".join(
        lines
        if len(lines) <= _MAX_LINES
        else [*lines[: _MAX_LINES - 1], "…" + label[-(_WRAP - 1) :]]
    )
