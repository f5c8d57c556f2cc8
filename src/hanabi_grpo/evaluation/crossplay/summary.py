"""All figures of a cross-play, finished or not, and their JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hanabi_grpo.evaluation.crossplay.cells import Cell
from hanabi_grpo.evaluation.crossplay.entries import unit_of
from hanabi_grpo.evaluation.crossplay.plan import Plan, PlannedSwap
from hanabi_grpo.evaluation.crossplay.statistics import (
    EntryFigures,
    Estimate,
    Matrix,
    MatrixFigures,
    entry_figures,
    matrix_figures,
    over_deals,
    paired,
)
from hanabi_grpo.runs.deal_statistics import deck_numbers
from hanabi_grpo.types import player_name

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedTeam:
    """An entry's adapters in other seats than their own."""

    order: tuple[int, ...]
    """Whose adapter sat in each seat."""
    score: Estimate
    minus_straight: Estimate
    """Its score minus that of everybody in the own seat, paired over deals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapFigures:
    """The seat swap of one entry."""

    label: str
    straight: Estimate
    teams: tuple[SwappedTeam, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A cross-play in figures."""

    plan: Plan
    cells: Mapping[str, Cell]
    matrix: Matrix
    whole: MatrixFigures
    entries: tuple[EntryFigures, ...]
    swaps: tuple[SwapFigures, ...]

    @property
    def num_played(self) -> int:
        """Pairs that were played, of N x N."""
        count = len(self.plan.entries)
        return sum(f"{i}-{j}" in self.cells for i in range(count) for j in range(count))

    @property
    def labels(self) -> tuple[str, ...]:
        """What the entries are called."""
        return tuple(entry.label for entry in self.plan.entries)

    @property
    def unit(self) -> str:
        """What the jackknife's error is over."""
        return unit_of(self.plan.entries)

    @property
    def reachable_max(self) -> int:
        """Most points that the board allows."""
        return self.plan.config.spec().reachable_max

    @property
    def num_decks(self) -> int:
        """Different decks among the deals."""
        return len(set(self.matrix.decks.tolist()))

    def errors(self) -> list[list[float]]:
        """Return the standard error of every cell, NaN where it was not played."""
        cells = range(self.matrix.num_entries)
        return [[self.matrix.cell(i, j).error for j in cells] for i in cells]


def summarise(plan: Plan, cells: Mapping[str, Cell]) -> Summary:
    """Compute every figure that the played cells allow; the others are NaN or None."""
    count = len(plan.entries)
    scores = np.full((count, count, plan.num_deals), math.nan)
    for i in range(count):
        for j in range(count):
            if cell := cells.get(f"{i}-{j}"):
                scores[i, j] = cell.result.scores
    decks = deck_numbers(plan.config.spec(), plan.suite, tuple(range(plan.num_deals)))
    matrix = Matrix(scores=scores, decks=np.asarray(decks, dtype=np.int64))
    return Summary(
        plan=plan,
        cells=dict(cells),
        matrix=matrix,
        whole=matrix_figures(matrix),
        entries=tuple(entry_figures(matrix)),
        swaps=tuple(_swap(plan, swap, cells, matrix) for swap in plan.swaps),
    )


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return everything but the scores deal by deal, which are in the files of the cells; NaN stands for unknown."""
    plan, spec = summary.plan, summary.plan.config.spec()
    return {
        "format": _FORMAT,
        "preset": spec.preset,
        "num_players": spec.num_players,
        "spec_hash": spec.hash,
        "reachable_max": spec.reachable_max,
        "env_config": plan.config.model_dump(mode="json"),
        "suite": plan.suite,
        "num_deals": plan.num_deals,
        "num_decks": summary.num_decks,
        "temperature": plan.temperature,
        "complete": len(summary.cells) == len(plan.cells),
        "num_played": summary.num_played,
        "num_pairs": plan.num_pairs,
        "self_play": summary.whole.self_play._asdict(),
        "cross_play": summary.whole.cross_play._asdict(),
        "gap": summary.whole.gap._asdict(),
        "error_entries_is_over": summary.unit,
        "entries": [
            {
                "label": entry.label,
                "word": entry.word,
                "seats": seats,
                **{name: _plain(value) for name, value in asdict(figures).items()},
                "worst_partners": [summary.labels[partner] for partner in figures.worst_partners],
            }
            for entry, seats, figures in zip(plan.entries, plan.seats, summary.entries, strict=True)
        ],
        "cells": [
            [_cell_json(summary.cells.get(f"{i}-{j}")) for j in range(len(plan.entries))]
            for i in range(len(plan.entries))
        ],
        "seat_swaps": [
            {
                "label": swap.label,
                "straight": swap.straight._asdict(),
                "teams": [
                    {
                        "adapters": [player_name(player) for player in team.order],
                        "score": team.score._asdict(),
                        "minus_straight": team.minus_straight._asdict(),
                    }
                    for team in swap.teams
                ],
            }
            for swap in summary.swaps
        ],
        "no_seat_swap": dict(plan.no_swap),
    }


def _swap(plan: Plan, swap: PlannedSwap, cells: Mapping[str, Cell], matrix: Matrix) -> SwapFigures:
    straight = matrix.scores[swap.entry, swap.entry]
    teams = []
    for order in swap.orders:
        cell = cells.get(swap.name(order))
        scores = np.asarray(cell.result.scores) if cell else np.full(plan.num_deals, math.nan)
        teams.append(
            SwappedTeam(
                order=order,
                score=over_deals(scores, matrix.decks),
                minus_straight=paired(scores, straight, matrix.decks),
            )
        )
    return SwapFigures(
        label=plan.entries[swap.entry].label, straight=over_deals(straight, matrix.decks), teams=tuple(teams)
    )


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Estimate) else value


def _cell_json(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    result = cell.result
    return {
        "seats": result.seats[0],
        "mean": result.mean,
        "standard_error": result.standard_error,
        "interval_95": [cell.low, cell.high],
        "mean_kept": result.mean_kept,
        "perfect_share": result.perfect_share,
        "bomb_share": result.bomb_share,
        "truncated_share": result.truncated_share,
        "illegal_per_game": result.illegal_per_game,
        "unparsable_per_game": result.unparsable_per_game,
        "hints_per_turn": result.hints_per_turn,
        "misplays_per_turn": result.misplays_per_turn,
        "turns_per_game": result.turns_per_game,
    }
