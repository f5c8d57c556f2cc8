"""The figures of a cross-play, finished or not: as JSON, and as tables for the terminal, Markdown
and the page.
"""

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
        """What the entries are called."""
        return tuple(entry.label for entry in self.plan.entries)

    @property
    def num_starts(self) -> int:
        """Different starts among the tasks."""
        return len(set(self.matrix.starts.tolist()))

    @property
    def estimates(self) -> list[list[Estimate]]:
        """Every cell, row by row."""
        cells = range(len(self.labels))
        return [[self.matrix.cell(i, j) for j in cells] for i in cells]

    def outcomes(self, row: int, column: int) -> list[float]:
        """Return wins, draws and losses of the row in percent; empty where nobody wins, or nothing
        was played.
        """
        cell = self.cells.get(f"{row}-{column}")
        roles = played_roles(cell.figures) if cell else []
        return (
            [100 * share for share in outcome_shares(cell.figures, roles)[:3]]
            if cell and roles
            else []
        )


def summarise(plan: Plan, cells: Mapping[str, EvaluationResult]) -> Summary:
    """Compute every figure that the played cells allow; the others are NaN or None."""
    count = len(plan.entries)
    unplayed = [math.nan] * plan.num_tasks
    scores = [cells[name].scores if name in cells else unplayed for name in plan.cells]
    starts = start_numbers(plan.setup, plan.suite, range(plan.num_tasks))
    matrix = Matrix(
        scores=np.asarray(scores, dtype=np.float64).reshape(count, count, -1),
        starts=np.asarray(starts, dtype=np.int64),
    )
    return Summary(
        plan=plan,
        cells=dict(cells),
        matrix=matrix,
        whole=matrix.whole() if plan.is_team else {},
        entries=tuple(map(matrix.entry, range(count))),
    )


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return everything but the scores task by task, which are in the files of the cells; NaN
    stands for unknown.
    """
    plan, spec, count = summary.plan, summary.plan.setup.spec, len(summary.labels)
    played = {
        name: {"seats": cell.seats[0], **cell.estimate.to_json(), "figures": cell.figures}
        for name, cell in summary.cells.items()
    }
    cells = [played.get(name) for name in plan.cells]
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
        "complete": len(summary.cells) == len(cells),
        "num_played": len(summary.cells),
        "num_pairs": len(cells),
        **{name: both._asdict() for name, both in summary.whole.items()},
        "entries": [
            {
                "label": entry.label,
                "word": str(entry.ref),
                "seats": seats,
                **{
                    name: value._asdict()
                    if isinstance(value := getattr(figures, name), Estimate)
                    else value
                    for name in EntryFigures.__slots__
                },
                "worst_partner": None
                if figures.worst_partner is None
                else summary.labels[figures.worst_partner],
            }
            for entry, seats, figures in zip(plan.entries, plan.seats, summary.entries, strict=True)
        ],
        "cells": [cells[count * i : count * (i + 1)] for i in range(count)],
    }


def describe(summary: Summary) -> list[str]:
    """Return what was played, in two or three lines."""
    plan, spec = summary.plan, summary.plan.setup.spec
    starts = (
        f" ({summary.num_starts} different starts)" if summary.num_starts < plan.num_tasks else ""
    )
    heat = plan.temperature
    how = "" if heat is None else ", greedy" if heat == 0 else f", temperature {heat:g}"
    lines = [
        f"{spec.env} {spec.preset}, {spec.num_players} players, rules {spec.hash}, {spec.score} "
        "at most "
        f"{score_range(spec)[1]:g}",
        f"{plan.num_tasks} tasks of suite {plan.suite}{starts}, the same for every pair{how}",
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
    """Return every table that says something, the matrix first."""
    return [
        _matrix_sheet(summary),
        *([_whole_sheet(summary)] if summary.whole else []),
        _entries_sheet(summary),
    ]


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
            "the row, in seat 0 of "
            "a team of the column."
        )
    rows = zip(summary.labels, summary.estimates, strict=True)
    return Sheet(
        title="Mean scores",
        columns=(" \\ ".join(seat_titles(summary)), *summary.labels),
        groups=[[(label, *(with_error(*cell) for cell in cells)) for label, cells in rows]],
        note=note,
    )


def _whole_sheet(summary: Summary) -> Sheet:
    names = {
        "self_play": "self-play",
        "cross_play": "cross-play",
        "gap": "self-play minus cross-play",
    }
    rows = []
    for name, both in summary.whole.items():
        mean = figure(both.mean, "+" if name == "gap" else "")
        rows.append((names[name], mean, figure(both.error_tasks), figure(both.error_entries)))
    return Sheet(
        title="Self-play and cross-play",
        columns=("", "mean", "± over tasks", "± over entries"),
        groups=[rows],
        note=(
            "Cross-play is the mean off the diagonal, both orders of each pair. ± over tasks: "
            "with other tasks, for "
            "these entries. ± over entries: with others of the same kind, e.g. training seeds "
            "(delete-one jackknife, "
            "from 3 entries on)."
        ),
    )


def _entries_sheet(summary: Summary) -> Sheet:
    """Return each entry with the others, best first: as a partner, or as a player where there are
    no teams.
    """
    first, others = seat_titles(summary)
    names, ranked = {"first_seat": "return against others"}, "first_seat"
    if summary.plan.is_team:
        names = {
            "self_play": "self-play",
            "first_seat": first,
            "other_seats": others,
            "cross_play": "cross-play",
        }
        names |= {"gap": "self − cross"}
        ranked = "cross_play"
    rows = []
    for label, entry in zip(summary.labels, summary.entries, strict=True):
        worst = UNKNOWN
        if entry.worst_partner is not None:
            worst = f"{with_error(*entry.worst)} ({summary.labels[entry.worst_partner]})"
        estimates = [(name, getattr(entry, name)) for name in names]
        cells = [
            with_error(one.mean, one.error, "+" if name == "gap" else "") for name, one in estimates
        ]
        mean = getattr(entry, ranked).mean
        rows.append((-mean if math.isfinite(mean) else math.inf, (label, *cells, worst)))
    return Sheet(
        title="Entries",
        columns=("entry", *names.values(), "worst with"),
        groups=[[row for _, row in sorted(rows, key=lambda one: one[0])]],
        note="With the others, best first. The worst is chosen by the same tasks, which its ± "
        "does not count.",
    )
