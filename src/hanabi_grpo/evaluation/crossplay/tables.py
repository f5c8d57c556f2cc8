"""A summary's tables as text, for the terminal, Markdown and the page."""

import math

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.evaluation.crossplay.statistics import BothErrors, Estimate
from hanabi_grpo.evaluation.crossplay.summary import Summary
from hanabi_grpo.evaluation.tables import Sheet
from hanabi_grpo.types import player_name

UNKNOWN = "–"


def describe(summary: Summary) -> list[str]:
    """Return what was played, in one or two lines."""
    plan, spec = summary.plan, summary.plan.config.spec()
    deals = f"{plan.num_deals} deals of suite {plan.suite}"
    if summary.num_decks < plan.num_deals:
        deals += f" ({summary.num_decks} different decks)"
    how = (
        ""
        if plan.temperature is None
        else ", greedy"
        if plan.temperature == 0
        else f", temperature {plan.temperature:g}"
    )
    lines = [
        f"{spec.preset}, {spec.num_players} players, board {spec.hash}, most points {spec.reachable_max}",
        f"{deals}, the same for every pair{how}",
    ]
    if summary.num_played < plan.num_pairs:
        lines.append(f"not finished: {summary.num_played} of {plan.num_pairs} pairs")
    return lines


def seat_titles(summary: Summary) -> tuple[str, str]:
    """Return what the rows and the columns of the matrix are."""
    last = summary.plan.config.players - 1
    return "in seat 0", "in seat 1" if last == 1 else f"in seats 1 to {last}"


def matrix_note(summary: Summary) -> str:
    """Return how to read a cell."""
    text = "Mean score ± standard error over deals. Diagonal: self-play."
    if summary.plan.config.players > 2:
        text += " Off it: one newcomer, the row, in seat 0 of a team of the column."
    return text


def matrix_table(summary: Summary, *, errors: bool = True) -> Sheet:
    """Return the cells, with or without their standard errors."""
    row_title, column_title = seat_titles(summary)
    labels = [visible(label) for label in summary.labels]
    count = len(labels)

    def cell(row: int, column: int) -> str:
        estimate = summary.matrix.cell(row, column)
        return show(summary, estimate) if errors else number(summary, estimate.mean)

    return Sheet(
        title="Mean scores",
        columns=(f"{row_title} \\ {column_title}", *labels),
        groups=[[(labels[i], *(cell(i, j) for j in range(count))) for i in range(count)]],
        note=matrix_note(summary),
    )


def whole_table(summary: Summary) -> Sheet:
    """Return self-play, cross-play and the gap of the whole matrix, with both errors."""
    figures = (
        ("self-play", summary.whole.self_play),
        ("cross-play", summary.whole.cross_play),
        ("self-play minus cross-play", summary.whole.gap),
    )
    return Sheet(
        title="Self-play and cross-play",
        columns=("", "mean", "± over deals", f"± over {summary.unit}"),
        groups=[[(name, *_both(summary, both)) for name, both in figures]],
        note=(
            "Cross-play is the mean off the diagonal, both orders of each pair. ± over deals: with other decks, for "
            f"these entries. ± over {summary.unit}: with other {summary.unit} of the same kind (delete-one jackknife, "
            "from 3 entries on)."
        ),
    )


def entries_table(summary: Summary) -> Sheet:
    """Return each entry's gap and worst partners."""
    first, others = seat_titles(summary)
    rows = []
    for label, entry in zip(summary.labels, summary.entries, strict=True):
        names = ", ".join(visible(summary.labels[partner]) for partner in entry.worst_partners)
        rows.append(
            (
                visible(label),
                show(summary, entry.self_play),
                show(summary, entry.first_seat),
                show(summary, entry.other_seats),
                show(summary, entry.gap, sign=True),
                number(summary, entry.gap_error_partners),
                f"{show(summary, entry.worst)} ({names})" if names else UNKNOWN,
            )
        )
    return Sheet(
        title="Entries",
        columns=(
            "entry",
            "self-play",
            f"with others, {first}",
            f"with others, {others}",
            "self minus cross ± deals",
            "± partners",
            "worst decile of partners",
        ),
        groups=[rows] if rows else [],
        note=(
            f"Worst decile: the tenth of the others, at least one, with which the entry {first} scores least. Its ± "
            "does not count that the choice was made by the same deals."
        ),
    )


def ranking_table(summary: Summary) -> Sheet:
    """Return the entries by how well the others play with them."""
    ranked = sorted(
        ((entry.rank, number) for number, entry in enumerate(summary.entries) if entry.rank is not None),
    )
    rows = []
    for rank, index in ranked:
        entry = summary.entries[index]
        behind = UNKNOWN if rank == 1 else show(summary, entry.behind_best)
        rows.append((str(rank), visible(summary.labels[index]), show(summary, entry.cross_play), behind))
    return Sheet(
        title="Best partner on average",
        columns=("rank", "entry", "cross-play", "behind the first"),
        groups=[rows] if rows else [],
        note="Mean over all others and both orders; each entry is left out of its own mean. Behind: paired over deals.",
        num_names=2,
    )


def swap_table(summary: Summary) -> Sheet:
    """Return what every entry with an adapter per player scores when they change seats."""
    straight = ", ".join(player_name(player) for player in range(summary.plan.config.players))
    rows: list[tuple[str, ...]] = []
    for swap in summary.swaps:
        rows.append((visible(swap.label), straight, show(summary, swap.straight), "own seats"))
        for team in swap.teams:
            adapters = ", ".join(player_name(player) for player in team.order)
            minus = show(summary, team.minus_straight, sign=True)
            rows.append((visible(swap.label), adapters, show(summary, team.score), minus))
    skipped = "; ".join(f"{visible(label)}: {reason}" for label, reason in summary.plan.no_swap.items())
    return Sheet(
        title="Seat swap",
        columns=("entry", "adapters in seats 0, 1, …", "score", "minus own seats"),
        groups=[rows] if rows else [],
        note="The last column is paired over deals." + (f" {skipped}." if skipped else ""),
        num_names=2,
    )


def all_sheets(summary: Summary) -> list[Sheet]:
    """Return every table that says something, the matrix first."""
    tables = [matrix_table(summary), whole_table(summary), entries_table(summary)]
    ranking, swaps = ranking_table(summary), swap_table(summary)
    if ranking.groups:
        tables.append(ranking)
    if swaps.groups or summary.plan.no_swap:
        tables.append(swaps)
    return tables


def show(summary: Summary, estimate: Estimate, *, sign: bool = False) -> str:
    """Return "mean ± error", or a dash where it is unknown."""
    if not math.isfinite(estimate.mean):
        return UNKNOWN
    return f"{number(summary, estimate.mean, sign=sign)} ± {number(summary, estimate.error)}"


def number(summary: Summary, value: float, *, sign: bool = False) -> str:
    """Return a score with as many digits as the board is fine; a dash where it is unknown."""
    if not math.isfinite(value):
        return UNKNOWN
    digits = 2 if summary.reachable_max >= 10 else 3
    # A rounded -0.001 is no negative number.
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}"


def _both(summary: Summary, both: BothErrors) -> tuple[str, ...]:
    sign = both is summary.whole.gap
    return (
        number(summary, both.mean, sign=sign),
        number(summary, both.error_deals),
        number(summary, both.error_entries),
    )
