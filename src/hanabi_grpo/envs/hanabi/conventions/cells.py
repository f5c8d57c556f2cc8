"""What the page's tables and bars are made of: text and numbers of one figure each, no markup."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.hanabi.conventions.report import (
    ANY_HINT,
    MIN_COUNT,
    OF_GAMES,
    OF_HINTS,
    OF_PLAYS,
    PER_GAME,
    PLAY_SIGNAL,
    ConventionReport,
    Estimate,
    MoveMatrix,
    Side,
    Unit,
)

NUM_SHADES = 8
"""Steps of colour on either side of "as usual"."""
_FULL_SHADE = 0.5
"""Difference of two shares that has the strongest colour; the same for every line-up."""
_FIGURES = OF_GAMES | PER_GAME | OF_PLAYS


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str
    style: str = ""
    """Class names: a shade, `thin` for few observations."""
    hover: str = ""


def figure_cell(estimate: Estimate, unit: Unit, what: str = "observations") -> Cell:
    """Return a figure with its standard error; its count shows on hovering."""
    if estimate.value is None:
        return Cell("–", "thin", f"0 {what}")
    text = number(estimate.value, unit)
    if estimate.error is not None:
        text += f" ± {number(estimate.error, unit)}"
    text += "%" if unit is Unit.SHARE else ""
    return Cell(text, "thin" if estimate.is_thin else "", f"{estimate.count} {what}")


def number(value: float, unit: Unit) -> str:
    """Return a value as pages write it: shares in per cent (without the sign), 0 never as -0."""
    text = f"{100 * value:.1f}" if unit is Unit.SHARE else f"{value:.3f}" if unit is Unit.BITS else f"{value:.2f}"
    return text.removeprefix("-") if float(text) == 0 else text


def matrix_rows(matrix: MoveMatrix, actions: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the heat map of P(next move | move) in per cent; shades: how far that is from the marginal."""
    columns = [index for index, share in enumerate(matrix.marginal) if share]
    rows = []
    for index, counts in enumerate(matrix.counts):
        total = sum(counts)
        if not total:
            continue
        cells = []
        for column in columns:
            share, usual = matrix.shares[index][column] or 0.0, matrix.marginal[column] or 0.0
            pair = f"{actions[index][1]} → {actions[column][1]}"
            hover = f"{pair}: {counts[column]} of {total}; usually {100 * usual:.1f}%"
            style = "thin" if total < MIN_COUNT else shade(share - usual)
            cells.append(Cell(_percent(share) if counts[column] else "", style, hover if counts[column] else ""))
        rows.append({"name": actions[index], "count": total, "cells": cells})
    marginal = [
        Cell(_percent(matrix.marginal[column] or 0.0), hover=f"{actions[column][1]}: usually") for column in columns
    ]
    num_pairs = sum(map(sum, matrix.counts))
    return {"columns": [actions[column] for column in columns], "rows": rows, "marginal": marginal, "count": num_pairs}


def shade(difference: float) -> str:
    """Return the class of a difference of two shares: `u1` to `u8` above 0, `d1` to `d8` below, "" about 0."""
    step = min(NUM_SHADES, round(NUM_SHADES * abs(difference) / _FULL_SHADE))
    return f"{'u' if difference > 0 else 'd'}{step}" if step else ""


def hint_rows(side: Side) -> list[dict[str, object]]:
    """Return one row per kind of hint to a seat: what it does next as a bar, and the other figures."""
    names = ("touched_of_plays", "oldest_of_choices", "newest_of_choices", "scored_of_touched", "playable_when_hinted")
    rows: list[dict[str, object]] = []
    for hint, figures in side.hints.items():
        given = figures["touched_per_hint"].count
        if not given:
            continue
        touched = figures["plays_touched"].value or 0.0
        parts = (touched, (figures["plays"].value or 0.0) - touched, figures["discards"].value or 0.0,
                 figures["hints_back"].value or 0.0)  # fmt: skip
        start, bar = 0.0, []
        for index, part in enumerate(parts):
            bar.append((index, f"{100 * start:.2f}", f"{100 * part:.2f}"))
            start += part
        rows.append(
            {
                "hint": hint,
                "count": given,
                "bar": bar,
                "words": ", ".join(f"{word} {_percent(part)}%" for word, part in zip(REPLIES, parts, strict=True)),
                "thin": figures["plays"].is_thin,
                "signal": figure_cell(figures["play_signal"], Unit.SHARE, "hints"),
                "cells": [figure_cell(figures[name], OF_HINTS[name].unit) for name in names],
            }
        )
    return rows


REPLIES = ("plays a touched card", "plays another card", "discards", "gives a hint")
"""Parts of the bars of `hint_rows`, in order."""


def compared(reports: Sequence[ConventionReport], names: Sequence[str]) -> list[dict[str, object]]:
    """Return, per figure of the teams, one bar per line-up, all on one scale from 0."""
    charts: list[dict[str, object]] = []
    for name in names:
        figure = PLAY_SIGNAL if name == "play_signal" else _FIGURES[name]
        of_team = [_of_team(report.team, name) for report in reports]
        ends = [abs(one.value) + 2 * (one.error or 0.0) for one in of_team if one.value is not None]
        top = max(ends, default=0.0) or 1.0
        lowest = min((one.value - 2 * (one.error or 0.0) for one in of_team if one.value is not None), default=0.0)
        low = min(0.0, lowest)
        scale = 100 / (top - low)
        bars = []
        for index, one in enumerate(of_team):
            value, error = one.value or 0.0, 2 * (one.error or 0.0)
            left, right = sorted((0.0, value))
            bars.append(
                {
                    "line_up": index + 1,
                    "cell": figure_cell(one, figure.unit),
                    "start": f"{scale * (left - low):.2f}",
                    "width": f"{scale * (right - left):.2f}",
                    "from": f"{scale * (max(low, value - error) - low):.2f}",
                    "to": f"{scale * (value + error - low):.2f}",
                    "shown": one.value is not None,
                }
            )
        title = figure.title + (" per game" if name in PER_GAME else "")
        charts.append({"title": title, "zero": f"{-scale * low:.2f}", "bars": bars})
    return charts


def figure_rows(report: ConventionReport, names: Sequence[str]) -> list[dict[str, object]]:
    """Return a table of figures: the team, then each seat."""
    sides = (report.team, *report.seats)
    return [
        {
            "title": _FIGURES[name].title,
            "cells": [figure_cell(side.figures[name], _FIGURES[name].unit) for side in sides],
        }
        for name in names
    ]


def _of_team(team: Side, name: str) -> Estimate:
    return team.hints[ANY_HINT][name] if name == "play_signal" else team.figures[name]


def _percent(share: float) -> str:
    return "<1" if 0 < share < 0.005 else f"{100 * share:.0f}"
