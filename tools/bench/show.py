"""The table: for the terminal, as Markdown, as JSON."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bench.row import Row

_COLUMNS = ("", "ratio", "median", "quartiles", "CPU s", "pairs", "target", "met")
_NUM_TEXT_COLUMNS = 2
"""The first columns, which are left-aligned."""
_NAME_COLUMN = 1
"""The only column that wraps."""
_STYLES = {"yes": "green", "NO": "red"}
_NONE = "–"
_LEAST_PAIRS_OF_A_REPORT = 5


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row."""
    quartiles = _NONE
    if row.quartiles is not None:
        low, high = row.quartiles
        quartiles = f"{_short(low)} to {_short(high)}"
    met = {True: "yes", False: "NO", None: _NONE}[row.met]
    return (
        row.id,
        row.name,
        _short(row.median),
        quartiles,
        _short(row.cpu_ratio),
        str(len(row.ratios)) if row.ratios else _NONE,
        _target(row),
        met,
    )


def rich_table(rows: Sequence[Row], title: str) -> Table:
    """Return the table for a terminal."""
    table = Table(title=Text(title), title_justify="left")
    for number, column in enumerate(_COLUMNS):
        table.add_column(
            column,
            overflow="fold",
            justify="left" if number < _NUM_TEXT_COLUMNS else "right",
            no_wrap=number != _NAME_COLUMN,
        )
    for row in rows:
        *plain, met = cells(row)
        table.add_row(*map(Text, plain), Text(met, style=_STYLES.get(met, "")))
    return table


def notes(rows: Sequence[Row]) -> list[str]:
    """Return a line per row: how it was measured, or why not, and why it misses its target."""
    lines = []
    for row in rows:
        parts = filter(None, (row.how, row.why_not, row.shortfall))
        lines.append(f"{row.id}: {'; '.join(parts)}")
    return lines


def markdown(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """Return the table and its notes as Markdown."""
    head = ("row", *_COLUMNS[1:])
    lines = [title(facts), "", _line(head), _line(["---"] * len(head))]
    for row in rows:
        lines.append(_line(cells(row)))
    lines.append("")
    for note in notes(rows):
        lines.append(f"- {_escaped(note)}")
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[Row], facts: dict[str, Any], failed: Sequence[str]) -> dict[str, Any]:
    """Return everything for the JSON file."""
    return {**facts, "failed": list(failed), "rows": [row.as_json() for row in rows]}


def title(facts: dict[str, Any]) -> str:
    """Return one line that describes where and how a run was made."""
    pairs = f"{facts['pairs']} pairs"
    if facts["pairs"] < _LEAST_PAIRS_OF_A_REPORT:
        pairs += f" (quick: fewer than the {_LEAST_PAIRS_OF_A_REPORT} that a report needs)"
    return (
        f"{facts['device']}, {facts['threads']}; {facts['model']} in {facts['dtype']}; "
        f"{facts['board']}, {facts['games_of_a_step']} games per step; {pairs}; "
        f"load average {facts['load_before']} before, {facts['load_after']} after; {facts['date']}"
    )


def _target(row: Row) -> str:
    if row.target is None:
        return "reported"
    return f"each {row.target}" if row.each else str(row.target)


def _short(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3g}"


def _line(columns: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(column) for column in columns) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
