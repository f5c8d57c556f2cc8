"""The figures of a cross-play, finished or not, and their JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanabi_grpo.evaluation.crossplay.entries import unit_of
from hanabi_grpo.evaluation.crossplay.plan import Plan
from hanabi_grpo.evaluation.crossplay.statistics import BothErrors, EntryFigures, Estimate, Matrix
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.matches import start_numbers
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
    def unit(self) -> str:
        """What the jackknife's error is over."""
        return unit_of(self.plan.entries)

    @property
    def score_range(self) -> tuple[float, float]:
        """Least and most that the rules allow."""
        return score_range(self.plan.setup.spec)

    @property
    def num_starts(self) -> int:
        """Different starts among the deals."""
        return len(set(self.matrix.starts.tolist()))

    def errors(self) -> list[list[float]]:
        """Return the standard error of every cell, NaN where it was not played."""
        cells = range(self.matrix.num_entries)
        return [[self.matrix.cell(i, j).error for j in cells] for i in cells]


def summarise(plan: Plan, cells: Mapping[str, EvaluationResult]) -> Summary:
    """Compute every figure that the played cells allow; the others are NaN or None."""
    count = len(plan.entries)
    unplayed = [math.nan] * plan.num_deals
    scores = [cells[cell.name].scores if cell.name in cells else unplayed for cell in plan.cells]
    starts = start_numbers(plan.setup, plan.suite, range(plan.num_deals))
    matrix = Matrix(
        scores=np.asarray(scores, dtype=np.float64).reshape(count, count, -1), starts=np.asarray(starts, dtype=np.int64)
    )
    return Summary(
        plan=plan,
        cells=dict(cells),
        matrix=matrix,
        whole=matrix.whole() if plan.is_team else {},
        entries=tuple(map(matrix.entry, range(count))),
    )


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return everything but the scores deal by deal, which are in the files of the cells; NaN stands for unknown."""
    plan, spec, count = summary.plan, summary.plan.setup.spec, len(summary.labels)
    cells = [summary.cells.get(cell.name) for cell in plan.cells]
    return {
        "format": _FORMAT,
        **plan.setup.row(),
        "preset": spec.preset,
        "num_players": spec.num_players,
        "spec_hash": spec.hash,
        "score": spec.score,
        "score_range": summary.score_range,
        "suite": plan.suite,
        "num_deals": plan.num_deals,
        "num_starts": summary.num_starts,
        "temperature": plan.temperature,
        "complete": len(summary.cells) == len(cells),
        "num_played": len(summary.cells),
        "num_pairs": len(cells),
        **{name: both._asdict() for name, both in summary.whole.items()},
        "error_entries_is_over": summary.unit,
        "entries": [
            {
                "label": entry.label,
                "word": entry.word,
                "seats": seats,
                **{name: _plain(getattr(figures, name)) for name in EntryFigures.__slots__},
                "worst_partner": None if figures.worst_partner is None else summary.labels[figures.worst_partner],
            }
            for entry, seats, figures in zip(plan.entries, plan.seats, summary.entries, strict=True)
        ],
        "cells": [[_cell_json(cell) for cell in cells[count * i : count * (i + 1)]] for i in range(count)],
    }


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Estimate) else value


def _cell_json(result: EvaluationResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    return {"seats": result.seats[0], **result.estimate.to_json(), "figures": result.figures}
