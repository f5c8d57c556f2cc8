"""One table as text, for the terminal, as Markdown and for pages; and figures as such tables write
them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

UNKNOWN = "–"
MAX_FIGURES = 8
"""Columns of figures in one table of 120 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table, as text."""

    title: str
    columns: tuple[str, ...]
    groups: Sequence[Sequence[Sequence[str]]]
    """Groups of rows of cells; a line is drawn between groups."""
    num_names: int = 1
    """How many of the first columns hold names, not figures."""
    note: str = ""
    """A sentence below the table."""

    def rich(self) -> Table:
        """Return the table for the terminal."""
        caption = Text(self.note) if self.note else None
        table = Table(
            title=Text(self.title), title_justify="left", caption=caption, caption_justify="left"
        )
        for number, column in enumerate(self.columns):
            # A long name is broken, a figure never.
            if number < self.num_names:
                table.add_column(column, overflow="fold")
            else:
                table.add_column(column, justify="right", no_wrap=True)
        for group in self.groups:
            for row in group:
                # Labels are people's: a bracket in one is no markup.
                table.add_row(*map(Text, row))
            table.add_section()
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---"] * self.num_names + ["---:"] * (len(self.columns) - self.num_names)
        lines = [f"**{self.title}**", "", _line(self.columns), _line(rule)]
        lines += [_line(row) for group in self.groups for row in group]
        lines += ["", self.note] if self.note else []
        return "\n".join(lines) + "\n"


def figure(value: float | None, sign: str = "") -> str:
    """Return a figure with three digits, a dash where it is unknown; `sign="+"` writes that of a
    difference.
    """
    # A rounded -0.0001 is no negative number.
    return (
        UNKNOWN
        if value is None or not math.isfinite(value)
        else f"{round(value, 3) + 0.0:{sign}.3f}"
    )


def with_error(mean: float, error: float, sign: str = "") -> str:
    """Return "mean ± error"; a dash where the mean is unknown."""
    return f"{figure(mean, sign)} ± {figure(error)}" if math.isfinite(mean) else UNKNOWN


def figure_sheets(
    title: str,
    first: str,
    groups: Sequence[Sequence[tuple[str, Mapping[str, float]]]],
    *,
    without: str,
) -> list[Sheet]:
    """Return tables of named figures, as many as their columns need, `without` one that stands
    elsewhere.

    `first` is the title of the column of names; a row of `groups` is a name and its figures.
    """
    rows = [figures for group in groups for _, figures in group]
    names = [
        name for name in dict.fromkeys(name for one in rows for name in one) if name != without
    ]
    return [
        Sheet(
            title=title,
            columns=(first, *(name.replace("_per_", "/") for name in some)),
            groups=[
                [(row, *(figure(figures.get(name)) for name in some)) for row, figures in one]
                for one in groups
            ],
        )
        for some in (
            names[start : start + MAX_FIGURES] for start in range(0, len(names), MAX_FIGURES)
        )
    ]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("\\", "\\\\").replace("|", r"\|").replace("\n", " ") for cell in cells)
    return "| " + " | ".join(escaped) + " |"
