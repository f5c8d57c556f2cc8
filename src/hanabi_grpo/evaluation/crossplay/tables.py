"""A summary's tables as text, for the terminal, Markdown and the page."""

import math

from hanabi_grpo.evaluation.crossplay.statistics import Estimate
from hanabi_grpo.evaluation.crossplay.summary import Summary
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet


def describe(summary: Summary) -> list[str]:
    """Return what was played, in one or two lines."""
    plan, spec = summary.plan, summary.plan.setup.spec
    deals = f"{plan.num_deals} deals of suite {plan.suite}"
    if summary.num_starts < plan.num_deals:
        deals += f" ({summary.num_starts} different starts)"
    heat = plan.temperature
    how = "" if heat is None else ", greedy" if heat == 0 else f", temperature {heat:g}"
    lines = [
        f"{spec.env} {spec.preset}, {spec.num_players} players, rules {spec.hash}, {spec.score} at most "
        f"{summary.score_range[1]:g}",
        f"{deals}, the same for every pair{how}",
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


def matrix_note(summary: Summary) -> str:
    """Return how to read a cell."""
    if not summary.plan.is_team:
        return "Mean return of the row ± standard error over deals, in every seat. Diagonal: of player_0."
    text = "Mean score ± standard error over deals. Diagonal: self-play."
    if summary.plan.setup.spec.num_players > 2:
        text += " Off it: one newcomer, the row, in seat 0 of a team of the column."
    return text


def matrix_table(summary: Summary, *, errors: bool = True) -> Sheet:
    """Return the cells, with or without their standard errors."""
    row_title, column_title = seat_titles(summary)
    labels = summary.labels
    cells = [[summary.matrix.cell(i, j) for j in range(len(labels))] for i in range(len(labels))]
    return Sheet(
        title="Mean scores",
        columns=(f"{row_title} \\ {column_title}", *labels),
        groups=[
            [
                (label, *(show(summary, cell) if errors else number(summary, cell.mean) for cell in row))
                for label, row in zip(labels, cells, strict=True)
            ]
        ],
        note=matrix_note(summary),
    )


def whole_table(summary: Summary) -> Sheet:
    """Return self-play, cross-play and the gap of the whole matrix, with both errors."""
    names = {"self_play": "self-play", "cross_play": "cross-play", "gap": "self-play minus cross-play"}
    rows = [
        (
            names[name],
            number(summary, both.mean, sign=name == "gap"),
            number(summary, both.error_deals),
            number(summary, both.error_entries),
        )
        for name, both in summary.whole.items()
    ]
    return Sheet(
        title="Self-play and cross-play",
        columns=("", "mean", "± over deals", f"± over {summary.unit}"),
        groups=[rows],
        note=(
            "Cross-play is the mean off the diagonal, both orders of each pair. ± over deals: with other deals, for "
            f"these entries. ± over {summary.unit}: with other {summary.unit} of the same kind (delete-one jackknife, "
            "from 3 entries on)."
        ),
    )


def entries_table(summary: Summary) -> Sheet:
    """Return each entry with the others, best first: as a partner, or as a player where there are no teams."""
    first, others = seat_titles(summary)
    names = {"first_seat": "return against others"}
    if summary.plan.is_team:
        names = {"first_seat": f"with others, {first}", "other_seats": f"with others, {others}"}
        names = {"self_play": "self-play", **names, "cross_play": "cross-play", "gap": "self minus cross"}
    ranked = "cross_play" if summary.plan.is_team else "first_seat"
    rows = []
    for label, entry in zip(summary.labels, summary.entries, strict=True):
        worst = UNKNOWN
        if entry.worst_partner is not None:
            worst = f"{show(summary, entry.worst)} ({summary.labels[entry.worst_partner]})"
        cells = [show(summary, getattr(entry, name), sign=name == "gap") for name in names]
        mean = getattr(entry, ranked).mean
        rows.append((-mean if math.isfinite(mean) else math.inf, (label, *cells, worst)))
    return Sheet(
        title="Entries",
        columns=("entry", *names.values(), "worst with"),
        groups=[[row for _, row in sorted(rows, key=lambda one: one[0])]],
        note="Best first. The worst is chosen by the same deals, which its ± does not count.",
    )


def all_sheets(summary: Summary) -> list[Sheet]:
    """Return every table that says something, the matrix first."""
    return [matrix_table(summary), *([whole_table(summary)] if summary.whole else []), entries_table(summary)]


def show(summary: Summary, estimate: Estimate, *, sign: bool = False) -> str:
    """Return "mean ± error", or a dash where it is unknown."""
    if not math.isfinite(estimate.mean):
        return UNKNOWN
    return f"{number(summary, estimate.mean, sign=sign)} ± {number(summary, estimate.error)}"


def number(summary: Summary, value: float, *, sign: bool = False) -> str:
    """Return a score with as many digits as its range is fine; a dash where it is unknown."""
    if not math.isfinite(value):
        return UNKNOWN
    digits = 2 if summary.score_range[1] >= 10 else 3
    # A rounded -0.001 is no negative number.
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}"
