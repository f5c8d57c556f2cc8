"""One table as text, for the terminal, as Markdown and for pages."""

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
        table = Table(title=Text(self.title), title_justify="left", caption=caption, caption_justify="left")
        for number, column in enumerate(self.columns):
            is_name = number < self.num_names
            # A long name is broken, a figure never.
            table.add_column(
                column,
                justify="left" if is_name else "right",
                no_wrap=not is_name,
                overflow="fold" if is_name else "ellipsis",
            )
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


def figure_sheets(
    title: str, first: str, groups: Sequence[Sequence[tuple[str, Mapping[str, float]]]], *, without: str
) -> list[Sheet]:
    """Return tables of named figures, as many as their columns need.

    Args:
        title: Of each.
        first: Title of the column of names.
        groups: Of rows: name and figures.
        without: A figure that stands elsewhere.
    """
    rows = [figures for group in groups for _, figures in group]
    names = [name for name in dict.fromkeys(name for one in rows for name in one) if name != without]
    return [
        Sheet(
            title=title,
            columns=(first, *(name.replace("_per_", "/") for name in some)),
            groups=[[(row, *(_figure(figures.get(name)) for name in some)) for row, figures in one] for one in groups],
        )
        for some in (names[start : start + MAX_FIGURES] for start in range(0, len(names), MAX_FIGURES))
    ]


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("\\", "\\\\").replace("|", r"\|").replace("\n", " ") for cell in cells)
    return "| " + " | ".join(escaped) + " |"
