"""The figures of a cross-play, finished or not: as JSON, and as tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hanabi_grpo.envs.starts import start_numbers
from hanabi_grpo.evaluation.crossplay.plan import Plan
from hanabi_grpo.evaluation.crossplay.ratings import (
    PartnerRatings,
    PlayerRatings,
    Rating,
    rate_partners,
    rate_players,
)
from hanabi_grpo.evaluation.crossplay.statistics import BothErrors, EntryFigures, Estimate, Matrix
from hanabi_grpo.evaluation.evaluate import describe_sampling, played_facts, score_range
from hanabi_grpo.evaluation.outcomes import (
    is_versus,
    outcome_shares,
    played_roles,
)
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, with_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult

_FORMAT = 2
"""Version of the JSON file."""
_GAP = "gap"
SEED_MARK = "#"
"""Between the name of a method and its seed in an entry's name."""
_TITLES_OF_FIGURES = {
    "self_play": "self-play",
    "cross_play": "cross-play",
    _GAP: "self-play minus cross-play",
}
"""Figures of the whole matrix, see `Matrix.whole`, with their names in tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFigures:
    """The seeds of one training method: entries named METHOD#SEED."""

    name: str
    num_seeds: int
    whole: Mapping[str, BothErrors]
    """As `Matrix.whole`, of these seeds alone; its error over entries is over seeds."""
    with_others: Mapping[str, Estimate]
    """By the name of another method, the mean score of all pairs with it, in both orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A cross-play in figures."""

    plan: Plan
    cells: Mapping[str, EvaluationResult]
    """By name of the cell."""
    matrix: Matrix
    whole: Mapping[str, BothErrors]
    """Figures of a team game, see `Matrix.whole`; empty for others."""
    entries: tuple[EntryFigures, ...]
    opponents: PlayerRatings | None = None
    """Ratings of a competitive game; None for others."""
    partners: PartnerRatings | None = None
    """Ratings of a team game; None for others, and with fewer than three entries."""
    methods: tuple[MethodFigures, ...] = ()
    """Methods with several seeds among the entries; empty if there are none."""

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
        is_team=plan.is_team,
    )
    opponents = None
    if is_versus(plan.setup.spec):
        opponents = rate_players(cells, num_entries, plan.setup.spec.role_names, starts)
    return Summary(
        plan=plan,
        cells=dict(cells),
        matrix=matrix,
        whole=matrix.whole() if plan.is_team else {},
        entries=tuple(map(matrix.entry, range(num_entries))),
        opponents=opponents,
        partners=rate_partners(matrix) if plan.is_team else None,
        methods=_methods(plan, matrix) if plan.is_team else (),
    )


def _methods(plan: Plan, matrix: Matrix) -> tuple[MethodFigures, ...]:
    """Return the figures of each method that has several seeds."""
    members: dict[str, list[int]] = {}
    for number, entry in enumerate(plan.entries):
        method, is_seed, _ = entry.label.rpartition(SEED_MARK)
        if is_seed and method:
            members.setdefault(method, []).append(number)
    seeds = {name: numbers for name, numbers in members.items() if len(numbers) > 1}
    figures = []
    for name, numbers in seeds.items():
        own = replace(matrix, scores=matrix.scores[np.ix_(numbers, numbers)])
        with_others = {}
        for other, other_numbers in seeds.items():
            if other != name:
                here = matrix.scores[np.ix_(numbers, other_numbers)].mean(axis=(0, 1))
                there = matrix.scores[np.ix_(other_numbers, numbers)].mean(axis=(0, 1))
                with_others[other] = matrix.over_tasks((here + there) / 2)
        figures.append(
            MethodFigures(
                name=name, num_seeds=len(numbers), whole=own.whole(), with_others=with_others
            )
        )
    return tuple(figures)


def summary_json(summary: Summary) -> dict[str, Any]:
    """Return a summary as a JSON object; NaN stands for unknown.

    It holds everything but the score of each task, which the ledgers of the cells have.
    """
    plan = summary.plan
    whole = {}
    for name, both in summary.whole.items():
        whole[name] = both._asdict()
    return {
        "format": _FORMAT,
        **played_facts(
            plan.setup,
            suite=plan.suite,
            num_tasks=plan.num_tasks,
            temperature=plan.temperature,
            token_filter=plan.token_filter,
        ),
        "num_starts": summary.num_starts,
        "complete": len(summary.cells) == len(plan.cells),
        "num_played": len(summary.cells),
        "num_pairs": len(plan.cells),
        **whole,
        "opponents": _opponents_json(summary),
        "partners": _partners_json(summary),
        "methods": [_method_json(method) for method in summary.methods],
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


def _opponents_json(summary: Summary) -> dict[str, Any] | None:
    ratings = summary.opponents
    if ratings is None:
        return None
    entries = []
    for label, rating in zip(summary.labels, ratings.entries, strict=True):
        entries.append({"label": label, **_rating_json(rating)})
    return {
        "scale": "Elo, mean 0",
        "num_games": ratings.num_games,
        "first_role": ratings.first_role,
        "seat_effect": _rating_json(ratings.seat_effect),
        "entries": entries,
    }


def _rating_json(rating: Rating) -> dict[str, Any]:
    return {"mean": rating.mean, "interval_95": [rating.low, rating.high]}


def _partners_json(summary: Summary) -> dict[str, Any] | None:
    ratings = summary.partners
    if ratings is None:
        return None
    entries = []
    for label, entry in zip(summary.labels, ratings.entries, strict=True):
        entries.append(
            {
                "label": label,
                "rating": entry.rating._asdict(),
                "error_partners": entry.error_partners,
                "row": entry.row._asdict(),
                "column": entry.column._asdict(),
                "own_convention": entry.own_convention._asdict(),
            }
        )
    return {"explained": ratings.explained, "entries": entries}


def _method_json(method: MethodFigures) -> dict[str, Any]:
    whole = {name: both._asdict() for name, both in method.whole.items()}
    others = {name: estimate._asdict() for name, estimate in method.with_others.items()}
    return {"name": method.name, "num_seeds": method.num_seeds, **whole, "with_others": others}


def _entry_json(summary: Summary, number: int) -> dict[str, Any]:
    entry = summary.plan.entries[number]
    figures = summary.entries[number]
    worst_partner = None
    if figures.worst_partner is not None:
        worst_partner = summary.labels[figures.worst_partner]
    row = {
        "label": entry.label,
        "word": str(entry.ref),
        "seats": summary.plan.seats[number],
        "self_play": figures.self_play._asdict(),
        "first_seat": figures.first_seat._asdict(),
        "other_seats": figures.other_seats._asdict(),
    }
    if summary.plan.is_team:
        # In a zero-sum game the mean over both seats is 0, whoever plays.
        row |= {"cross_play": figures.cross_play._asdict(), "gap": figures.gap._asdict()}
    return row | {"worst": figures.worst._asdict(), "worst_partner": worst_partner}


def describe(summary: Summary) -> list[str]:
    """Return what was played, in two or three lines."""
    plan = summary.plan
    spec = plan.setup.spec
    greatest = score_range(spec)[1]
    starts = ""
    if summary.num_starts < plan.num_tasks:
        starts = f" ({summary.num_starts} different starts)"
    sampling = describe_sampling(plan.temperature, plan.token_filter)
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
    if summary.methods:
        sheets.append(_methods_sheet(summary))
    if summary.opponents is not None:
        sheets.append(_opponents_sheet(summary, summary.opponents))
    if summary.partners is not None:
        sheets.append(_partners_sheet(summary, summary.partners))
    sheets.append(_entries_sheet(summary))
    return sheets


def _matrix_sheet(summary: Summary) -> Sheet:
    if not summary.plan.is_team:
        note = (
            "Mean return of the row ± standard error over tasks, over all seats. Diagonal: return "
            "of player_0."
        )
    elif summary.plan.setup.spec.num_players == 2:
        note = "Mean score ± standard error over tasks. Diagonal: self-play."
    else:
        note = (
            "Mean score ± standard error over tasks. Diagonal: self-play. Off the "
            "diagonal: the row in seat 0, the column in all other seats."
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
            "Cross-play: mean off the diagonal, over both orders of each pair. ± over tasks: "
            "standard error over tasks, for these entries. ± over entries: standard error over "
            "entries of the same kind, e.g. training seeds (delete-one jackknife, with 3 entries "
            "or more)."
        ),
    )


def _methods_sheet(summary: Summary) -> Sheet:
    """Return self-play minus cross-play of each method, over its seeds."""
    names = [method.name for method in summary.methods]
    rows = []
    for method in summary.methods:
        cells = []
        for title in _TITLES_OF_FIGURES:
            both = method.whole[title]
            sign = "+" if title == _GAP else ""
            if math.isfinite(both.error_entries):
                cells.append(with_error(both.mean, both.error_entries, sign))
            else:
                cells.append(figure(both.mean, sign))
        for other in names if len(names) > 1 else ():
            estimate = method.with_others.get(other)
            mean = figure(estimate.mean) if estimate is not None else UNKNOWN
            cells.append(mean)
        rows.append((method.name, str(method.num_seeds), *cells))
    others = [f"with {name}" for name in names] if len(names) > 1 else []
    return Sheet(
        title="Methods",
        columns=("", "seeds", *_TITLES_OF_FIGURES.values(), *others),
        groups=[rows],
        note=(
            "Entries named METHOD#SEED. Cross-play: among the seeds of a method. ±: standard error "
            "over seeds (delete-one jackknife, with 3 seeds or more)."
        ),
    )


def _opponents_sheet(summary: Summary, ratings: PlayerRatings) -> Sheet:
    """Return the ratings of players, best first."""
    order = sorted(range(len(summary.labels)), key=lambda number: -ratings.entries[number].mean)
    rows = []
    for number in order:
        rating = ratings.entries[number]
        interval = f"{rating.low:+.0f} to {rating.high:+.0f}"
        rows.append((summary.labels[number], f"{rating.mean:+.0f}", interval))
    seat = ratings.seat_effect
    return Sheet(
        title="Ratings",
        columns=("entry", "rating", "95 %"),
        groups=[rows],
        note=(
            f"Bradley-Terry ratings on the Elo scale, mean 0, from {ratings.num_games} games off "
            "the diagonal; a draw counts as half a win. Intervals resample tasks, with the "
            f"games of all pairs. Playing as {ratings.first_role} is worth {seat.mean:+.0f} points "
            f"({seat.low:+.0f} to {seat.high:+.0f}) against an equal opponent."
        ),
    )


def _partners_sheet(summary: Summary, ratings: PartnerRatings) -> Sheet:
    """Return the ratings of partners, best first."""
    first, others = seat_titles(summary)
    order = sorted(
        range(len(summary.labels)), key=lambda number: -ratings.entries[number].rating.mean
    )
    rows = []
    for number in order:
        entry = ratings.entries[number]
        rows.append(
            (
                summary.labels[number],
                with_error(entry.rating.mean, entry.rating.error, "+"),
                figure(entry.error_partners),
                with_error(entry.row.mean, entry.row.error, "+"),
                with_error(entry.column.mean, entry.column.error, "+"),
                with_error(entry.own_convention.mean, entry.own_convention.error, "+"),
            )
        )
    explained = ""
    if math.isfinite(ratings.explained):
        explained = f" The fit explains {100 * ratings.explained:.0f} % of their variance."
    return Sheet(
        title="Ratings as partners",
        columns=("entry", "rating", "± over partners", first, others, "own convention"),
        groups=[rows],
        note=(
            "Points that an entry adds to a team of others, row effect plus column effect: the "
            f"cells off the diagonal are fitted as mean + row + column.{explained} ± over tasks. "
            "Own convention: self-play score minus what the fit predicts."
        ),
    )


def _entries_sheet(summary: Summary) -> Sheet:
    """Return each entry's scores with the others, best first.

    Team games rank entries as partners, competitive games as players.
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
            "Scores with the other entries, best first. The worst one is chosen on the same tasks; "
            "its ± does not account for this."
        ),
    )


def _worst_cell(summary: Summary, entry: EntryFigures) -> str:
    """Return the worst partner with the score, e.g. "1.200 ± 0.050 (blind)"."""
    if entry.worst_partner is None:
        return UNKNOWN
    score = with_error(entry.worst.mean, entry.worst.error)
    return f"{score} ({summary.labels[entry.worst_partner]})"
