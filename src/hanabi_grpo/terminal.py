"""Terminal output: a console that shows texts without interpreting them, and tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hanabi_grpo.texts import visible

_CELL_MARGIN = 3
"""Characters of a column in addition to its content: a space on each side, and a line."""
_LEAST_NAME = 12
"""Minimum width of a column of names, if its names are that long."""
_LEAST_TEXT = 20
"""Minimum width of a column of texts, if its texts are that long."""
_LONGEST_HEADING = 16
"""Maximum length of a word in a heading that is not broken."""
_NAME_SHARE = 0.5
"""Share of the line that names may take if not all columns fit next to them."""


class VisibleConsole(Console):
    """A console that interprets neither control characters nor markup in brackets.

    Printed text may come from run folders and from the network. Rich's own styles and cursor
    movements still work.
    """

    def __init__(self, **options: Any) -> None:
        """Create a console; the options are rich's."""
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of anything printed, each with visible text."""
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = Segment(visible(segment.text), segment.style)
            yield segment


def sayer(console: Console) -> Callable[..., None]:
    """Return a function that prints a text unchanged and never wrapped, so that it can be copied.

    Its second argument, `style`, is rich's.
    """

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, soft_wrap=True)

    return say


class ColumnKind(StrEnum):
    """How a column adapts if a table is wider than the terminal."""

    NAME = "name"
    """Names the row: long names are broken into lines, and repeated in every part."""
    FIGURE = "figure"
    """Never cut or broken; columns without room continue below, in a further part."""
    TEXT = "text"
    """Broken into lines."""


@dataclass(slots=True)
class FittedTable:
    """A table that keeps the names of its rows and complete figures at any width.

    If its columns do not fit next to each other, the remaining ones follow in further parts below,
    each with the names repeated.

    Example:
        table = FittedTable("scores", ["lineup", "score"], [ColumnKind.NAME, ColumnKind.FIGURE])
        table.add_row("iggi", "2.659 ± 0.041")
    """

    title: str
    columns: Sequence[str]
    """Headings."""
    kinds: Sequence[ColumnKind]
    """One for each column; names come first."""
    caption: str = ""
    """A sentence below the table."""
    _rows: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)
    """Cells and style of each row."""
    _ends: set[int] = field(default_factory=set)
    """Numbers of the rows after which a line is drawn."""

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Append a row; its cells are text, never markup."""
        self._rows.append((tuple(map(visible, cells)), style))

    def add_section(self) -> None:
        """Draw a line below the last row."""
        self._ends.add(len(self._rows) - 1)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the parts, at least one."""
        num_names = sum(kind is ColumnKind.NAME for kind in self.kinds)
        name_widths = self._name_widths(num_names, options.max_width)
        room = options.max_width - 1 - sum(name_widths) - _CELL_MARGIN * num_names
        parts = self._parts(range(num_names, len(self.columns)), room)
        # Title and caption have the whole line, however narrow the table is.
        if self.title:
            yield Text(self.title, style="table.title")
        for part in parts:
            table = Table()
            for index, width in enumerate(name_widths):
                heading = Text(self.columns[index], overflow="fold")
                table.add_column(heading, width=width, overflow="fold")
            for index, width in zip(part, self._widths(part, room), strict=True):
                heading = Text(self.columns[index], overflow="fold")
                is_figure = self.kinds[index] is ColumnKind.FIGURE
                justify: JustifyMethod = "right" if is_figure else "left"
                table.add_column(heading, justify=justify, width=width, overflow="fold")
            for row, (cells, style) in enumerate(self._rows):
                shown = [self._cell(index, cells[index]) for index in (*range(num_names), *part)]
                table.add_row(*shown, style=style, end_section=row in self._ends)
            yield table
        if self.caption:
            yield Text(self.caption, style="table.caption")

    def _widths(self, part: Sequence[int], room: int) -> list[int]:
        """Return the widths of a part's columns.

        The rest of the line goes to the texts and headings that need it, from left to right.
        """
        widths = [min(self._least_width(index), max(1, room - _CELL_MARGIN)) for index in part]
        left = room - sum(widths) - _CELL_MARGIN * len(part)
        for position, index in enumerate(part):
            wanted = max(self._content_width(index), cell_len(self.columns[index]))
            more = max(0, min(left, wanted - widths[position]))
            widths[position] += more
            left -= more
        return widths

    def _cell(self, index: int, text: str) -> Text:
        is_figure = self.kinds[index] is ColumnKind.FIGURE
        return Text(text, overflow="fold", no_wrap=is_figure)

    def _content_width(self, index: int) -> int:
        """Return the width of the widest cell of a column, without its heading."""
        return max((cell_len(cells[index]) for cells, _ in self._rows), default=0)

    def _least_width(self, index: int) -> int:
        """Return the minimum width of a column: figures unbroken, headings broken between words."""
        content = self._content_width(index)
        if self.kinds[index] is ColumnKind.TEXT:
            content = min(content, _LEAST_TEXT)
        longest_word = max(map(cell_len, self.columns[index].split()), default=0)
        return max(content, min(longest_word, _LONGEST_HEADING), 1)

    def _name_widths(self, num_names: int, width: int) -> list[int]:
        """Return the widths of the columns of names.

        They have the width of their texts if all columns fit; else at most a share of the line, and
        never so much that the widest figure would not fit next to them.
        """
        widths = []
        for index in range(num_names):
            widths.append(max(self._content_width(index), cell_len(self.columns[index]), 1))
        others = [self._least_width(index) for index in range(num_names, len(self.columns))]
        margins = 1 + _CELL_MARGIN * num_names
        all_others = sum(others) + _CELL_MARGIN * len(others)
        if margins + sum(widths) + all_others <= width:
            return widths
        widest = max(others, default=0) + _CELL_MARGIN
        limit = min(width - margins - widest, int(width * _NAME_SHARE))
        limit = max(limit, width - margins - all_others)
        while sum(widths) > limit and max(widths) > _LEAST_NAME:
            widths[widths.index(max(widths))] -= 1
        return widths

    def _parts(self, indices: Sequence[int], room: int) -> list[list[int]]:
        """Return the columns of each part: as many as fit next to the names, at least one."""
        parts: list[list[int]] = [[]]
        left = room
        for index in indices:
            needed = self._least_width(index) + _CELL_MARGIN
            if needed > left and parts[-1]:
                parts.append([])
                left = room
            parts[-1].append(index)
            left -= needed
        return parts
