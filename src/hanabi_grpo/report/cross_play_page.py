"""The page and the other files of a cross-play."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.summary import Summary, summary_json
from hanabi_grpo.evaluation.crossplay.tables import all_sheets, describe, matrix_note, number, seat_titles, show
from hanabi_grpo.report.charts.heat_map import NUM_COLORS, color_at, draw_heat_map, ink_on
from hanabi_grpo.report.page import render
from hanabi_grpo.runs.evaluation_result import write_document

JSON, MARKDOWN, PICTURE, PAGE = "cross_play.json", "cross_play.md", "heat_map.png", "cross_play.html"
_SHORT = 7
"""Longest label that stands upright above a column."""


def write_cross_play(folder: Path, summary: Summary) -> list[Path]:
    """Write JSON, tables, picture and page, finished or not, and return the files.

    Raises:
        SettingsError: A file cannot be written.
    """
    paths = [folder / name for name in (JSON, MARKDOWN, PICTURE, PAGE)]
    write_document(paths[0], summary_json(summary))
    row_title, column_title = seat_titles(summary)
    try:
        paths[1].write_text(markdown_report(summary), encoding="utf-8")
        draw_heat_map(
            paths[2],
            summary.matrix.means.tolist(),
            summary.errors(),
            summary.labels,
            limits=summary.score_range,
            title="\n".join(describe(summary)),
            row_title=row_title,
            column_title=column_title,
            note=matrix_note(summary),
        )
        paths[3].write_text(render_cross_play(summary), encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{error.filename or folder}: cannot be written ({error.strerror}); the cells are kept. Make room and give "
            "the same command again."
        ) from error
    return paths


def markdown_report(summary: Summary) -> str:
    """Return every table as Markdown."""
    head = "# Cross-play\n\n" + "".join(f"- {line}\n" for line in describe(summary))
    return "\n".join([head, *(sheet.markdown() for sheet in all_sheets(summary))])


def render_cross_play(summary: Summary) -> str:
    """Return the page."""
    entries = tuple(replace(entry, label=visible(entry.label)) for entry in summary.plan.entries)
    summary = replace(summary, plan=replace(summary.plan, entries=entries))
    low, high = summary.score_range
    row_title, column_title = seat_titles(summary)
    labels = summary.labels
    return render(
        "cross_play.html.j2",
        script="cross_play.js",
        style=_color_classes(),
        lines=describe(summary),
        row_title=row_title,
        column_title=column_title,
        labels=labels,
        upright=all(len(label) <= _SHORT for label in labels),
        rows=[[_cell(summary, i, j) for j in range(len(labels))] for i in range(len(labels))],
        note=matrix_note(summary),
        scale=[number(summary, value) for value in (low, (low + high) / 2, high)],
        sheets=all_sheets(summary)[1:],
    )


def _cell(summary: Summary, row: int, column: int) -> dict[str, Any]:
    estimate, (low, high) = summary.matrix.cell(row, column), summary.score_range
    if not math.isfinite(estimate.mean):
        return {"kind": "missing", "mean": "–", "error": "", "detail": "not played"}
    share = min(max((estimate.mean - low) / (high - low), 0.0), 1.0)
    return {
        "kind": f"k{round((NUM_COLORS - 1) * share)}" + (" self" if row == column else ""),
        "mean": f"{estimate.mean:.2f}",
        "error": f"±{estimate.error:.2f}",
        "detail": _detail(summary, row, column),
    }


def _detail(summary: Summary, row: int, column: int) -> str:
    result = summary.cells[f"{row}-{column}"]
    found = result.estimate
    row_title, column_title = seat_titles(summary)
    who = f"{summary.labels[row]} {row_title}, {summary.labels[column]} {column_title}"
    facts = [
        f"{show(summary, summary.matrix.cell(row, column))}",
        f"95 % interval {number(summary, found.low)} to {number(summary, found.high)}",
        *(f"{name} {value:.2f}" for name, value in result.figures.items() if name != result.score),
    ]
    return visible(f"{who}: {', '.join(facts)}")


def _color_classes() -> str:
    colors = [color_at(step / (NUM_COLORS - 1)) for step in range(NUM_COLORS)]
    rules = [f".k{step} {{ background: {color}; color: {ink_on(color)}; }}" for step, color in enumerate(colors)]
    return "\n".join([*rules, f".scale {{ background: linear-gradient(to right, {', '.join(colors)}); }}"]) + "\n"
