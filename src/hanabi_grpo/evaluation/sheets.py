"""Tables as text for the terminal, Markdown and pages, and the format of their figures."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hanabi_grpo.terminal import ColumnKind, FittedTable
from hanabi_grpo.texts import visible

UNKNOWN = "–"
"""Cell of a figure that is not known."""
MAX_FIGURES = 8
"""Columns of figures that fit into one table of 120 characters."""
_DECIMALS = 3
_MARKUP = re.compile(r"[\\|*`~]|(?<!\w)_|_(?!\w)|(?<=\])\(")
"""Characters that begin or end markup; an underscore within a word does not."""
_ENTITY = re.compile(r"&(?=#?\w+;)")
"""The beginning of an HTML character reference, e.g. "&lt;"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table, as text."""

    title: str
    columns: tuple[str, ...]
    """Headings."""
    groups: Sequence[Sequence[Sequence[str]]]
    """Groups of rows of cells; a line is drawn between groups."""
    num_names: int = 1
    """How many of the first columns hold names, not figures."""
    note: str = ""
    """A sentence below the table."""

    def rich(self) -> FittedTable:
        """Return the table for the terminal."""
        num_figures = len(self.columns) - self.num_names
        kinds = [ColumnKind.NAME] * self.num_names + [ColumnKind.FIGURE] * num_figures
        table = FittedTable(self.title, self.columns, kinds, caption=self.note)
        for group in self.groups:
            for row in group:
                table.add_row(*row)
            table.add_section()
        return table

    def markdown(self) -> str:
        """Return the table as Markdown, without invisible characters."""
        num_figures = len(self.columns) - self.num_names
        rule = ["---"] * self.num_names + ["---:"] * num_figures
        lines = [f"**{markdown_text(self.title)}**", "", _markdown_row(self.columns)]
        lines.append(_joined_cells(rule))
        for group in self.groups:
            lines += map(_markdown_row, group)
        if self.note:
            lines += ["", markdown_text(self.note)]
        return visible("\n".join(lines) + "\n")


def figure(value: float | None, sign: str = "") -> str:
    """Return a figure with three decimals; a dash where it is unknown.

    Args:
        value: The figure; None or not finite: unknown.
        sign: "+" writes the sign of a difference.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    # Adding 0.0 turns the -0.0 of a rounded -0.0001 into 0.0.
    rounded = round(value, _DECIMALS) + 0.0
    return f"{rounded:{sign}.{_DECIMALS}f}"


def with_error(mean: float, error: float, sign: str = "") -> str:
    """Return "mean ± error"; a dash where the mean is unknown."""
    if not math.isfinite(mean):
        return UNKNOWN
    return f"{figure(mean, sign)} ± {figure(error)}"


def figure_sheets(
    title: str,
    first: str,
    groups: Sequence[Sequence[tuple[str, Mapping[str, float]]]],
    *,
    without: str,
) -> list[Sheet]:
    """Return tables of named figures, as many as their columns need.

    Args:
        title: Title of every table.
        first: Heading of the column of names.
        groups: Groups of rows; a row is a name and its figures.
        without: A figure that is left out because another table shows it.
    """
    figure_names: dict[str, None] = {}
    for group in groups:
        for _, figures in group:
            figure_names.update(dict.fromkeys(figures))
    figure_names.pop(without, None)
    names = list(figure_names)
    sheets = []
    for start in range(0, len(names), MAX_FIGURES):
        columns = names[start : start + MAX_FIGURES]
        headings = [name.replace("_per_", "/") for name in columns]
        sheet = Sheet(
            title=title,
            columns=(first, *headings),
            groups=[_figure_rows(group, columns) for group in groups],
        )
        sheets.append(sheet)
    return sheets


def _figure_rows(
    group: Sequence[tuple[str, Mapping[str, float]]], columns: Sequence[str]
) -> list[tuple[str, ...]]:
    rows = []
    for name, figures in group:
        cells = [figure(figures.get(column)) for column in columns]
        rows.append((name, *cells))
    return rows


def markdown_text(text: str) -> str:
    r"""Return a text as Markdown that shows it verbatim, on one line: names are not markup.

    Example:
        markdown_text("<b>a*b_c") == r"&lt;b>a\*b_c"
    """
    escaped = _MARKUP.sub(r"\\\g<0>", text.replace("\n", " "))
    return _ENTITY.sub("&amp;", escaped).replace("<", "&lt;")


def _markdown_row(cells: Sequence[str]) -> str:
    return _joined_cells([markdown_text(cell) for cell in cells])


def _joined_cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
