"""The table: for the terminal, as Markdown, as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bench.row import Row

_COLUMNS = ("", "ratio", "median", "quartiles", "CPU s", "pairs", "target", "met")
_STYLES = {"yes": "green", "NO": "red"}


def cells(row: Row) -> tuple[str, ...]:
    """Return what the table's columns say of a row."""
    quartiles = row.quartiles
    met = {True: "yes", False: "NO", None: "–"}[row.met]
    return (
        row.id,
        row.name,
        "–" if row.median is None else _short(row.median),
        "–" if quartiles is None else f"{_short(quartiles[0])} to {_short(quartiles[1])}",
        "–" if row.cpu_ratio is None else _short(row.cpu_ratio),
        str(len(row.ratios)) if row.ratios else "–",
        "reported" if row.target is None else str(row.target),
        met,
    )


def rich_table(rows: Sequence[Row], title: str) -> Table:
    """Return the table for a terminal."""
    table = Table(title=Text(title), title_justify="left")
    for number, column in enumerate(_COLUMNS):
        table.add_column(
            column, overflow="fold", justify="left" if number < 2 else "right", no_wrap=number != 1
        )
    for row in rows:
        *plain, met = cells(row)
        table.add_row(*map(Text, plain), Text(met, style=_STYLES.get(met, "")))
    return table


def notes(rows: Sequence[Row]) -> list[str]:
    """Return a line per row: how it was measured, or why not, and what keeps it from its target."""
    return [
        f"{row.id}: " + "; ".join(part for part in (row.how, row.why_not, row.shortfall) if part)
        for row in rows
    ]


def markdown(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """Return the table and its notes as Markdown."""
    head = ("row", *_COLUMNS[1:])
    lines = [title(facts), "", _line(head), _line(["---"] * len(head))]
    lines += [_line(cells(row)) for row in rows]
    lines += ["", *(f"- {_plain(note)}" for note in notes(rows))]
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[Row], facts: dict[str, Any], failed: Sequence[str]) -> dict[str, Any]:
    """Return everything for the JSON file."""
    return {**facts, "failed": list(failed), "rows": [row.as_json() for row in rows]}


def title(facts: dict[str, Any]) -> str:
    """Return one line that says where and how a run was made."""
    pairs = f"{facts['pairs']} pairs" + (
        " (quick: fewer than the 5 that a report needs)" if facts["pairs"] < 5 else ""
    )
    return (
        f"{facts['device']}, {facts['threads']}; {facts['model']} in {facts['dtype']}; "
        f"{facts['board']}, "
        f"{facts['games_of_a_step']} games a step; {pairs}; load average {facts['load_before']} "
        "before, "
        f"{facts['load_after']} after; {facts['date']}"
    )


def _short(value: float) -> str:
    return f"{value:.3g}"


def _line(columns: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(column) for column in columns) + " |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
