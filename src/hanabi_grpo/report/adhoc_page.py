"""The files of an ad-hoc evaluation: figures as JSON, the heat map as a picture, and a page."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hanabi_grpo.evaluation.adhoc.plan import partner_name
from hanabi_grpo.evaluation.adhoc.summary import (
    AdhocSummary,
    Pairing,
    adhoc_json,
    adhoc_sheets,
    describe_adhoc,
)
from hanabi_grpo.evaluation.crossplay.plan import Entry
from hanabi_grpo.evaluation.sheets import UNKNOWN
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.matrix import Matrix, draw_matrix
from hanabi_grpo.report.matrix_files import write_matrix_files
from hanabi_grpo.report.page import render
from hanabi_grpo.texts import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAME = "adhoc"
"""Name of JSON and page."""
JSON_FILE = f"{_NAME}.json"
"""File of the figures, in the folder of an ad-hoc evaluation."""


def write_adhoc(folder: Path, summary: AdhocSummary) -> list[Path]:
    """Write JSON, picture and page of an ad-hoc evaluation, finished or not.

    Returns:
        The files.

    Raises:
        SettingsError: A file cannot be written.
    """
    return write_matrix_files(
        folder, _NAME, adhoc_json(summary), heat_map(summary), render_adhoc(summary)
    )


def render_adhoc(summary: AdhocSummary) -> str:
    """Return the page."""
    adhoc = summary.plan.adhoc
    shown = replace(
        adhoc,
        candidates=_visible_labels(adhoc.candidates),
        partners=_visible_labels(adhoc.partners),
    )
    summary = replace(summary, plan=replace(summary.plan, adhoc=shown))
    return render(
        "adhoc.html.j2",
        lines=describe_adhoc(summary),
        picture=data_address(heat_map(summary)),
        sheets=adhoc_sheets(summary),
    )


def _visible_labels(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(replace(entry, label=visible(entry.label)) for entry in entries)


def heat_map(summary: AdhocSummary) -> "Figure":
    """Draw the share of the bound with each partner, and the score below it.

    The first column is the partner with itself. With one candidate, the other columns are its seats
    and their mean; with several, their means.
    """
    columns = ["partner's self-play"]
    cells = [[_alone(summary, j) for j in range(len(summary.partner_labels))]]
    for label, candidate in zip(summary.candidate_labels, summary.candidates, strict=True):
        by_partner = {pairing.partner: pairing for pairing in candidate.pairings}
        if len(summary.candidates) == 1:
            for seat in range(summary.plan.setup.spec.num_players):
                columns.append(f"in seat {seat}")
                cells.append(
                    [
                        _in_seat(summary, by_partner.get(j), seat)
                        for j in range(len(summary.partner_labels))
                    ]
                )
        columns.append(label)
        cells.append([_mean(by_partner.get(j)) for j in range(len(summary.partner_labels))])
    rows = []
    for j, name in enumerate(summary.partner_labels):
        bound = summary.bounds[j]
        kind = "" if bound is None or bound.kind == "exact" else f" ({bound.kind})"
        rows.append(f"{name}{kind}{_mark(summary, j)}")
    shares = np.array([[share for share, _ in column] for column in cells]).T
    texts = [[column[j][1] for column in cells] for j in range(len(rows))]
    return draw_matrix(
        Matrix(
            rows=rows,
            columns=columns,
            values=shares,
            texts=texts,
            scale=(0.0, 1.0),
            scale_name="share of the bound (exact unless marked); below: score",
            row_title="partner",
            column_title="candidate",
            heading=describe_adhoc(summary),
        )
    )


def _mark(summary: AdhocSummary, j: int) -> str:
    """Return how candidates have met a partner in training; "" if none has.

    Example:
        " [trained with]", or " [a: trained with]" where another candidate has not met it
    """
    relations = {}
    for label, candidate in zip(summary.candidate_labels, summary.candidates, strict=True):
        for pairing in candidate.pairings:
            if pairing.partner == j:
                relations[label] = pairing.relation
    met = {label: relation for label, relation in relations.items() if relation}
    if not met:
        return ""
    if len(met) == len(relations) and len(set(met.values())) == 1:
        return f" [{next(iter(met.values()))}]"
    return f" [{'; '.join(f'{label}: {relation}' for label, relation in met.items())}]"


_Cell = tuple[float, str]
"""Share of the bound, and the text."""
_EMPTY: _Cell = (math.nan, UNKNOWN)


def _cell(score: float, bound: float) -> _Cell:
    if bound <= 0:
        return _EMPTY
    share = score / bound
    return share, f"{100 * share:.0f} %\n{score:.2f}"


def _alone(summary: AdhocSummary, j: int) -> _Cell:
    itself = summary.results.get(partner_name(j))
    bound = summary.bounds[j]
    if itself is None or bound is None:
        return _EMPTY
    return _cell(itself.mean, bound.mean)


def _in_seat(summary: AdhocSummary, pairing: Pairing | None, seat: int) -> _Cell:
    if pairing is None:
        return _EMPTY
    bound = summary.bounds[pairing.partner]
    assert bound is not None, "a pairing has a bound"
    return _cell(pairing.seats[seat], bound.seats[seat] if bound.seats else bound.mean)


def _mean(pairing: Pairing | None) -> _Cell:
    if pairing is None:
        return _EMPTY
    share = pairing.share.mean
    if not math.isfinite(share):
        return _EMPTY
    return share, f"{100 * share:.0f} %\n{pairing.score.mean:.2f}"
