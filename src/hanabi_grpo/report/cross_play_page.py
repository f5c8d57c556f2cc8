"""The files of a cross-play: figures as JSON, the heat map as a picture, and a page with tables."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hanabi_grpo.evaluation.crossplay.summary import (
    Summary,
    all_sheets,
    describe,
    seat_titles,
    summary_json,
)
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.sheets import UNKNOWN
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.matrix import Matrix, draw_matrix
from hanabi_grpo.report.matrix_files import write_matrix_files
from hanabi_grpo.report.page import render
from hanabi_grpo.texts import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAME = "cross_play"
"""Name of JSON and page."""
JSON_FILE = f"{_NAME}.json"
"""File of the figures, in the folder of a cross-play."""
_ERRORS_UP_TO = 24
"""Number of entries up to which cells have room for a second line."""


def write_cross_play(folder: Path, summary: Summary) -> list[Path]:
    """Write JSON, picture and page of a cross-play, finished or not.

    Returns:
        The files.

    Raises:
        SettingsError: A file cannot be written.
    """
    return write_matrix_files(
        folder, _NAME, summary_json(summary), heat_map(summary), render_cross_play(summary)
    )


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
    """Draw mean ± standard error of every cell, on the color scale of the game's score range.

    In competitive games the second line shows the row's wins/draws/losses in percent instead.
    """
    rows, columns = seat_titles(summary)
    scale_name = "return of the row; below: its wins/draws/losses in percent"
    if summary.plan.is_team:
        scale_name = "mean score"
    indices = range(len(summary.labels))
    return draw_matrix(
        Matrix(
            rows=summary.labels,
            columns=summary.labels,
            values=summary.matrix.means,
            texts=[[_cell_text(summary, row, column) for column in indices] for row in indices],
            scale=score_range(summary.plan.setup.spec),
            scale_name=scale_name,
            row_title=rows,
            column_title=columns,
            heading=describe(summary),
            is_diagonal_bold=True,
        )
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
