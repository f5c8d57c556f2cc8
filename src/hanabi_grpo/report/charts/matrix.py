"""Heat maps: a matrix of figures with a text in each cell."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.report.charts.canvas import make_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL_INCHES = 0.82
_LEAST_SIDE = 3.2
"""Inches of a small matrix."""
_LABEL_INCHES = 2.7
"""Room for labels beside the matrix, and below it where they are rotated."""
_FLAT_LABEL_INCHES = 1.9
"""Room for labels below the matrix where they are not rotated."""
_LONGEST_FLAT_LABEL = 10
"""Characters; labels below the matrix are rotated where one is longer."""
_LABEL_WRAP = 24
"""Characters of a label's line."""
_MAX_LABEL_LINES = 3
_LARGEST_FONT = 12.0
_CHARACTERS_PER_INCH = 11
"""Characters of the heading per inch."""
_UNPLAYED = "#d9d9d9"
"""Color of cells that were not played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What a heat map shows."""

    rows: Sequence[str]
    """Names of the rows."""
    columns: Sequence[str]
    """Names of the columns."""
    values: NDArray[np.float64]
    """(rows, columns): the value that colors a cell; NaN: not played."""
    texts: Sequence[Sequence[str]]
    """Text of each cell."""
    scale: tuple[float, float]
    """Least and greatest value of the color scale."""
    scale_name: str
    row_title: str
    column_title: str
    heading: Sequence[str]
    """Lines above the matrix."""
    is_diagonal_bold: bool = False
    """Whether the text of the diagonal stands out."""


def draw_matrix(matrix: Matrix) -> "Figure":
    """Draw a matrix; names that are too long are wrapped, and cut at their start."""
    num_rows = len(matrix.rows)
    num_columns = len(matrix.columns)
    row_names = [_wrapped(label) for label in matrix.rows]
    column_names = [_wrapped(label) for label in matrix.columns]
    is_rotated = max(map(len, column_names)) > _LONGEST_FLAT_LABEL
    across = max(_CELL_INCHES * num_columns, _LEAST_SIDE)
    down = max(_CELL_INCHES * num_rows, _LEAST_SIDE)
    width = across + _LABEL_INCHES
    height = down + (_LABEL_INCHES if is_rotated else _FLAT_LABEL_INCHES)
    figure = make_figure(width, height)
    axes = figure.subplots()
    low, high = matrix.scale
    shown = np.ma.masked_invalid(matrix.values)
    image = axes.imshow(shown, cmap="viridis", vmin=low, vmax=high)
    if num_rows != num_columns:
        axes.set_aspect("auto")
    axes.set_facecolor(_UNPLAYED)
    per_cell = min(across / num_columns, down / num_rows)
    _write_cells(axes, matrix, font_size=min(_LARGEST_FONT, 6.0 * per_cell + 5.0))
    rotation = 90 if is_rotated else 0
    axes.set_xticks(
        range(num_columns), column_names, rotation=rotation, fontsize=9.5, parse_math=False
    )
    axes.set_yticks(range(num_rows), row_names, fontsize=9.5, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(matrix.column_title, labelpad=8)
    axes.set_ylabel(matrix.row_title, labelpad=8)
    heading: list[str] = []
    for line in matrix.heading:
        heading += textwrap.wrap(line, int(_CHARACTERS_PER_INCH * width))
    figure.suptitle("\n".join(heading), fontsize=10.5, x=0.01, ha="left", parse_math=False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02, label=matrix.scale_name)
    bar.outline.set_visible(False)
    return figure


def _write_cells(axes: "Axes", matrix: Matrix, *, font_size: float) -> None:
    """Write the text of every cell, dark on bright and bright on dark."""
    low, high = matrix.scale
    for (row, column), value in np.ndenumerate(matrix.values):
        # The bright half of viridis begins at its middle.
        is_bright = not math.isfinite(value) or value > (low + high) / 2
        axes.text(
            column,
            row,
            matrix.texts[row][column],
            ha="center",
            va="center",
            fontsize=0.9 * font_size,
            color="black" if is_bright else "white",
            fontweight="bold" if matrix.is_diagonal_bold and row == column else "normal",
        )


def _wrapped(label: str) -> str:
    """Return a label in a few lines; a long label is cut at its beginning."""
    # Paths have no spaces at which a line could break.
    with_blanks = label.replace("/", "/ ")
    lines = []
    for line in textwrap.wrap(with_blanks, _LABEL_WRAP):
        lines.append(line.replace("/ ", "/"))
    if len(lines) > _MAX_LABEL_LINES:
        end = "…" + label[-(_LABEL_WRAP - 1) :]
        lines = [*lines[: _MAX_LABEL_LINES - 1], end]
    return "\n".join(lines)
