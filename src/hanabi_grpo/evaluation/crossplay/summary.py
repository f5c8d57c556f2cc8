"""The figures of a cross-play, finished or not: as JSON, and as tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanabi_grpo.evaluation.crossplay.plan import Plan
from hanabi_grpo.evaluation.crossplay.statistics import BothErrors, EntryFigures, Estimate, Matrix
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.matches import start_numbers
from hanabi_grpo.evaluation.outcomes import outcome_shares, played_roles
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, with_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult

_FORMAT = 2
"""Version of the JSON file."""
_GAP = "gap"
_TITLES_OF_FIGURES = {
    "self_play": "self-play",
    "cross_play": "cross-play",
    _GAP: "self-play minus cross-play",
}
"""Figures of the whole matrix, see `Matrix.whole`, with their names in tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A cross-play in figures."""

    plan: Plan
    cells: Mapping[str, EvaluationResult]
    """By name of the cell."""
    matrix: Matrix
    whole: Mapping[str, BothErrors]
    """Figures of a team game, see `Matrix.whole`; empty elsewhere."""
    entries: tuple[EntryFigures, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the entries."""
        return tuple(entry.label for entry in self.plan.entries)

    @property
    def num_starts(self) -> int:
        """Number of different starts among the tasks."""
        return len(set(self.matrix.starts.tolist()))

    @property
    def estimates(self) -> list[list[Estimate]]:
        """Every cell, row by row."""
        indices = range(len(self.labels))
        rows = []
        for row in indices:
            rows.append([self.matrix.cell(row, column) for column in indices])
        return rows

    def outcomes(self, row: int, column: int) -> list[float]:
        """Return wins, draws and losses of the row in percent.

        Empty where the game has no winner, or nothing was played.
        """
        cell = self.cells.get(f"{row}-{column}")
        if cell is None:
            return []
        roles = played_roles(cell.figures)
        if not roles:
            return []
        win, draw, loss, _ = outcome_shares(cell.figures, roles)
        return [100 * win, 100 * draw, 100 * loss]


def summarise(plan: Plan, cells: Mapping[str, EvaluationResult]) -> Summary:
    """Compute every figure that the played cells allow; the others are NaN or None."""
    num_entries = len(plan.entries)
    unplayed = (math.nan,) * plan.num_tasks
    scores = []
    for name in plan.cells:
        scores.append(cells[name].scores if name in cells else unplayed)
    shape = (num_entries, num_entries, -1)
    starts = start_numbers(plan.setup, plan.suite, range(plan.num_tasks))
    matrix = Matrix(
        scores=np.asarray(scores, dtype=np.float64).reshape(shape),
        starts=np.asarray(starts, dtype=np.int64),
    )
    return Summary(
        plan=plan,
        cells=dict(cells),
        matrix=matrix,
        whole=matrix.whole() if plan.is_team else {},
        entries=tuple(map(matrix.entry, range(num_entries))),
    )


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a summary as a JSON object; NaN stands for unknown.

    It holds everything but the score of each task, which the ledgers of the cells have.
    """
    plan = summary.plan
    spec = plan.setup.spec
    whole = {}
    for name, both in summary.whole.items():
        whole[name] = both._asdict()
    return {
        "format": _FORMAT,
        **plan.setup.row(),
        "preset": spec.preset,
        "num_players": spec.num_players,
        "spec_hash": spec.hash,
        "score": spec.score,
        "score_range": score_range(spec),
        "suite": plan.suite,
        "num_tasks": plan.num_tasks,
        "num_starts": summary.num_starts,
        "temperature": plan.temperature,
        "top_p": plan.token_filter.top_p,
        "top_k": plan.token_filter.top_k,
        "complete": len(summary.cells) == len(plan.cells),
        "num_played": len(summary.cells),
        "num_pairs": len(plan.cells),
        **whole,
        "entries": [_entry_json(summary, number) for number in range(len(summary.labels))],
        "cells": _matrix_json(summary),
    }


def _matrix_json(summary: Summary) -> list[list[dict[str, Any] | None]]:
    """Return the cells row by row; None for a cell that was not played."""
    indices = range(len(summary.labels))
    rows = []
    for row in indices:
        cells = []
        for column in indices:
            cell = summary.cells.get(f"{row}-{column}")
            cells.append(_cell_json(cell))
        rows.append(cells)
    return rows


def _cell_json(cell: EvaluationResult | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    return {"seats": cell.seats[0], **cell.estimate.to_json(), "figures": cell.figures}


def _entry_json(summary: Summary, number: int) -> dict[str, Any]:
    entry = summary.plan.entries[number]
    figures = summary.entries[number]
    worst_partner = None
    if figures.worst_partner is not None:
        worst_partner = summary.labels[figures.worst_partner]
    return {
        "label": entry.label,
        "word": str(entry.ref),
        "seats": summary.plan.seats[number],
        "self_play": figures.self_play._asdict(),
        "first_seat": figures.first_seat._asdict(),
        "other_seats": figures.other_seats._asdict(),
        "cross_play": figures.cross_play._asdict(),
        "gap": figures.gap._asdict(),
        "worst": figures.worst._asdict(),
        "worst_partner": worst_partner,
    }


def describe(summary: Summary) -> list[str]:
    """Return what was played, in two or three lines."""
    plan = summary.plan
    spec = plan.setup.spec
    greatest = score_range(spec)[1]
    starts = ""
    if summary.num_starts < plan.num_tasks:
        starts = f" ({summary.num_starts} different starts)"
    sampling = ""
    if plan.temperature == 0:
        sampling = ", greedy"
    elif plan.temperature is not None:
        sampling = f", temperature {plan.temperature:g}"
        if not plan.token_filter.keeps_all:
            sampling += f", {plan.token_filter}"
    board = spec.env if spec.preset == spec.env else f"{spec.env} {spec.preset}"
    lines = [
        f"{board}, {spec.num_players} players, rules {spec.hash}, {spec.score} "
        f"at most {greatest:g}",
        f"{plan.num_tasks} tasks of suite {plan.suite}{starts}, the same for every pair{sampling}",
    ]
    if len(summary.cells) < len(plan.cells):
        lines.append(f"not finished: {len(summary.cells)} of {len(plan.cells)} pairs")
    return lines


def seat_titles(summary: Summary) -> tuple[str, str]:
    """Return what the rows and the columns of the matrix are."""
    if not summary.plan.is_team:
        return "return of", "against"
    last = summary.plan.setup.spec.num_players - 1
    return "in seat 0", "in seat 1" if last == 1 else f"in seats 1 to {last}"


def all_sheets(summary: Summary) -> list[Sheet]:
    """Return every table, the matrix first."""
    sheets = [_matrix_sheet(summary)]
    if summary.whole:
        sheets.append(_whole_sheet(summary))
    sheets.append(_entries_sheet(summary))
    return sheets


def _matrix_sheet(summary: Summary) -> Sheet:
    if not summary.plan.is_team:
        note = (
            "Mean return of the row ± standard error over tasks, in every seat. Diagonal: of "
            "player_0."
        )
    elif summary.plan.setup.spec.num_players == 2:
        note = "Mean score ± standard error over tasks. Diagonal: self-play."
    else:
        note = (
            "Mean score ± standard error over tasks. Diagonal: self-play. Off it: one newcomer, "
            "the row, in seat 0 of a team of the column."
        )
    rows = []
    for label, estimates in zip(summary.labels, summary.estimates, strict=True):
        cells = [with_error(estimate.mean, estimate.error) for estimate in estimates]
        rows.append((label, *cells))
    corner = " \\ ".join(seat_titles(summary))
    return Sheet(
        title="Mean scores",
        columns=(corner, *summary.labels),
        groups=[rows],
        note=note,
    )


def _whole_sheet(summary: Summary) -> Sheet:
    rows = []
    for name, both in summary.whole.items():
        mean = figure(both.mean, "+" if name == _GAP else "")
        errors = (figure(both.error_tasks), figure(both.error_entries))
        rows.append((_TITLES_OF_FIGURES[name], mean, *errors))
    return Sheet(
        title="Self-play and cross-play",
        columns=("", "mean", "± over tasks", "± over entries"),
        groups=[rows],
        note=(
            "Cross-play is the mean off the diagonal, both orders of each pair. ± over tasks: "
            "with other tasks, for these entries. ± over entries: with others of the same kind, "
            "e.g. training seeds (delete-one jackknife, from 3 entries on)."
        ),
    )


def _entries_sheet(summary: Summary) -> Sheet:
    """Return each entry with the others, best first.

    Teams rank entries as partners; where there are no teams, entries are ranked as players.
    """
    if summary.plan.is_team:
        first, others = seat_titles(summary)
        titles = {
            "self_play": "self-play",
            "first_seat": first,
            "other_seats": others,
            "cross_play": "cross-play",
            _GAP: "self − cross",
        }
        ranked_by = "cross_play"
    else:
        titles = {"first_seat": "return against others"}
        ranked_by = "first_seat"

    def rank(number: int) -> float:
        mean = getattr(summary.entries[number], ranked_by).mean
        return -mean if math.isfinite(mean) else math.inf

    rows = []
    for number in sorted(range(len(summary.entries)), key=rank):
        entry = summary.entries[number]
        cells = []
        for name in titles:
            estimate: Estimate = getattr(entry, name)
            sign = "+" if name == _GAP else ""
            cells.append(with_error(estimate.mean, estimate.error, sign))
        rows.append((summary.labels[number], *cells, _worst_cell(summary, entry)))
    return Sheet(
        title="Entries",
        columns=("entry", *titles.values(), "worst with"),
        groups=[rows],
        note=(
            "With the others, best first. The worst is chosen by the same tasks, which its ± does "
            "not count."
        ),
    )


def _worst_cell(summary: Summary, entry: EntryFigures) -> str:
    """Return the worst partner with the score, e.g. "1.200 ± 0.050 (blind)"."""
    if entry.worst_partner is None:
        return UNKNOWN
    score = with_error(entry.worst.mean, entry.worst.error)
    return f"{score} ({summary.labels[entry.worst_partner]})"
