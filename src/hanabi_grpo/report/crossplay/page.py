"""Cross-play as one HTML file that needs nothing else: no network, no server, and to be read no script either.

Every text goes through the template, which escapes it. A content security policy names the hashes of the page's own
style and script, so that nothing else in it can run or fetch anything; therefore colours are classes.
"""

import base64
import hashlib
import math
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.evaluation.crossplay.cells import Cell
from hanabi_grpo.evaluation.crossplay.summary import Summary
from hanabi_grpo.evaluation.crossplay.tables import all_tables, describe, matrix_note, number, seat_titles, show
from hanabi_grpo.report.charts import ColorScale
from hanabi_grpo.report.charts.color_scale import color_at, ink_on

_PACKAGE = "hanabi_grpo.report.crossplay"
_STEPS = 32
"""Colours between the ends of the scale; finer steps than the eye tells apart in a table."""
_SHORT = 7
"""Longest label that stands upright above a column."""


def render_page(summary: Summary) -> str:
    """Return the page."""
    means = summary.matrix.means
    scale = ColorScale.over(means.ravel().tolist(), summary.reachable_max)
    style, script = _template("cross_play.css") + _color_classes(), _template("cross_play.js")
    environment = Environment(
        loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    row_title, column_title = seat_titles(summary)
    labels = [visible(label) for label in summary.labels]
    return environment.get_template("cross_play.html.j2").render(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        lines=describe(summary),
        row_title=row_title,
        column_title=column_title,
        labels=labels,
        upright=all(len(label) <= _SHORT for label in labels),
        rows=[[_cell(summary, scale, i, j) for j in range(len(labels))] for i in range(len(labels))],
        note=matrix_note(summary),
        scale=[number(summary, value) for value in (scale.low, (scale.low + scale.high) / 2, scale.high)],
        steps=_STEPS,
        tables=all_tables(summary)[1:],
    )


def _cell(summary: Summary, scale: ColorScale, row: int, column: int) -> dict[str, Any]:
    estimate = summary.matrix.cell(row, column)
    if not math.isfinite(estimate.mean):
        return {"kind": "missing", "mean": "–", "error": "", "detail": "not played"}
    cell = summary.cells[f"{row}-{column}"]
    return {
        "kind": f"k{round(_STEPS * scale.position(estimate.mean))}" + (" self" if row == column else ""),
        "mean": f"{estimate.mean:.2f}",
        "error": f"±{estimate.error:.2f}",
        "detail": _detail(summary, cell, row, column),
    }


def _detail(summary: Summary, cell: Cell, row: int, column: int) -> str:
    result = cell.result
    row_title, column_title = seat_titles(summary)
    who = f"{summary.labels[row]} {row_title}, {summary.labels[column]} {column_title}"
    facts = [
        f"{show(summary, summary.matrix.cell(row, column))}",
        f"95 % interval {number(summary, cell.low)} to {number(summary, cell.high)}",
        f"kept on a bomb {result.mean_kept:.2f}",
        f"bombs {result.bomb_share:.1%}",
        f"perfect {result.perfect_share:.1%}",
    ]
    if result.temperature is not None:
        facts.append(f"illegal {result.illegal_per_game:.2f} and unparsable {result.unparsable_per_game:.2f} per game")
    return visible(f"{who}: {', '.join(facts)}")


def _color_classes() -> str:
    colors = [color_at(step / _STEPS) for step in range(_STEPS + 1)]
    rules = [f".k{step} {{ background: {color}; color: {ink_on(color)}; }}" for step, color in enumerate(colors)]
    return "\n".join([*rules, f".bar {{ background: linear-gradient(to right, {', '.join(colors)}); }}"]) + "\n"


def _template(name: str) -> str:
    return resources.files(_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
