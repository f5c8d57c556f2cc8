"""What every picture shares: figures without a window system, their looks, and files or data addresses of them."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.run_views.braille import bin_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#1f5fa8", "#b5651d", "#2e7d32", "#6a3d9a", "#c2185b")
"""Of players, and of what else stands side by side."""
LEVEL = "#555555"
SMOOTH = 9
"""Steps of the trailing mean of bold lines."""
_DPI = 120
_COLUMNS, _CELL = 4, (3.4, 2.3)
"""Of a grid; inches of one of its pictures."""
_MOST_POINTS = 300
"""Of a line; more are not told apart, and a page would carry them."""


def make_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches."""
    # The object interface: pyplot would choose a window system and keep every figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def make_grid(number: int, title: str, *, sharex: bool = False) -> "tuple[Figure, list[Axes]]":
    """Return a figure of small pictures under one heading, and their axes in reading order."""
    columns = min(_COLUMNS, number)
    rows = -(-number // columns)
    figure = make_figure(_CELL[0] * columns, _CELL[1] * rows + 0.8)
    grid: Any = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    for place, axes in enumerate(grid.flat):
        axes.set_visible(place < number)
        axes.tick_params(labelsize=7)
        if number - columns <= place < number:
            axes.set_xlabel("training step", fontsize=8)
            axes.tick_params(labelbottom=True)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    return figure, list(grid.flat)[:number]


def name_lines(figure: "Figure", axes: "Axes", colors: Mapping[str, str]) -> None:
    """Write which colour is whose above a grid."""
    handles = [axes.plot([], [], color=color, label=name)[0] for name, color in colors.items()]
    if handles:
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, frameon=False)


def draw_line(axes: "Axes", steps: Sequence[int], values: Sequence[float], color: str, *, bold: float = 2.0) -> float:
    """Draw each step thin and the trailing mean bold; returns where the bold line ends."""
    means = trailing_mean(values, SMOOTH)
    places = bin_means([float(step) for step in steps], _MOST_POINTS)
    axes.plot(places, bin_means(values, _MOST_POINTS), color=color, alpha=0.3, linewidth=0.9)
    axes.plot(
        places, bin_means(means, _MOST_POINTS), color=color, linewidth=bold, marker="o" if len(places) == 1 else None
    )
    return means[-1]


def tidy(axes: "Axes", *, steps: bool = True) -> None:
    """Give axes the looks of all pictures; `steps`: only whole numbers below."""
    from matplotlib.ticker import MaxNLocator

    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if steps:
        axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def add_caption(figure: "Figure", text: str) -> None:
    """Write a line of small text below."""
    figure.supxlabel(text, fontsize=8.5, x=0.01, ha="left", color="#333333", parse_math=False)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a PNG, or an SVG where the name ends in .svg; its folder is made where it is missing.

    Raises:
        SettingsError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(figure, path, "svg" if path.suffix == ".svg" else "png")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror}); choose another place.") from error


def data_address(figure: "Figure") -> str:
    """Return the figure as the `src` of an image: an SVG in a data: address."""
    content = io.BytesIO()
    _write(figure, content, "svg")
    return "data:image/svg+xml;base64," + base64.b64encode(content.getvalue()).decode()


def _write(figure: "Figure", target: Path | io.BytesIO, kind: str) -> None:
    """Equal runs give equal files, and the text of an SVG stays text."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "hanabi", "svg.fonttype": "none"}):
        figure.savefig(target, format=kind, dpi=_DPI, metadata={"Date": None} if kind == "svg" else None)
