"""What every picture shares: figures without a window system, their looks, and files or data addresses of them."""

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import trailing_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#1f5fa8", "#b5651d", "#2e7d32", "#6a3d9a", "#c2185b")
"""Of players, and of what else stands side by side."""
LEVEL = "#555555"
SMOOTH = 9
"""Steps of the trailing mean of bold lines."""
_DPI = 120
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


def draw_line(axes: "Axes", steps: Sequence[int], values: Sequence[float], color: str, *, bold: float = 2.0) -> float:
    """Draw each step thin and the trailing mean bold; returns where the bold line ends."""
    means = trailing_mean(values, SMOOTH)
    places = _bin_means([float(step) for step in steps])
    axes.plot(places, _bin_means(values), color=color, alpha=0.3, linewidth=0.9)
    axes.plot(places, _bin_means(means), color=color, linewidth=bold, marker="o" if len(places) == 1 else None)
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
        with _same_bytes():
            if path.suffix == ".svg":
                figure.savefig(path, format="svg", metadata={"Date": None})
            else:
                figure.savefig(path, format="png", dpi=_DPI)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror}); choose another place.") from error


def data_address(figure: "Figure") -> str:
    """Return the figure as the `src` of an image: an SVG in a data: address."""
    content = io.BytesIO()
    with _same_bytes():
        figure.savefig(content, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(content.getvalue()).decode()


@contextmanager
def _same_bytes() -> Iterator[None]:
    """Equal runs give equal files, and the text of an SVG stays text."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "hanabi", "svg.fonttype": "none"}):
        yield


def _bin_means(values: Sequence[float]) -> list[float]:
    count = min(_MOST_POINTS, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
