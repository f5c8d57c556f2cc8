"""Shared by all charts: figures without a window system, their style, and how to save them."""

import base64
import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hanabi_grpo.evaluation.smoothing import bin_means, trailing_mean
from hanabi_grpo.runs.run_folder import save_text
from hanabi_grpo.texts import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE_FORMATS = {".png": "png", ".svg": "svg"}
"""Format of a picture, by the suffix of its name in lower case."""
COLORS = ("#1f5fa8", "#b5651d", "#2e7d32", "#6a3d9a", "#c2185b")
"""Colors of players, and of other lines in one chart."""
LEVEL = "#555555"
"""Color of reference lines."""
ALERT = "#c62828"
"""Color of alarms and of held-out scores."""
SMOOTH = 9
"""Steps of the trailing mean of bold lines."""
_CAPTION = "#333333"
_DPI = 120
_NAME_WRAP = 24
"""Characters of a name's line."""
_MOST_POINTS = 300
"""Most points of a line; more could not be distinguished, and would make pages larger."""
_SVG_PATH = re.compile(rb' d="[^"]+"')
_LONG_DECIMALS = re.compile(rb"(\.\d\d)\d+")


def make_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches."""
    # The object interface: pyplot would choose a window system and keep every figure alive.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_line(
    axes: "Axes",
    steps: Sequence[int],
    values: Sequence[float],
    color: str,
    *,
    name: str = "",
    width: float = 2.0,
    style: str = "-",
) -> None:
    """Draw each step thin and the trailing mean bold.

    Args:
        axes: The axes to draw on.
        steps: x, ascending.
        values: y.
        color: Color of both lines.
        name: Name of the bold line, to which its last value is added; "": no name.
        width: Width of the bold line in points.
        style: Style of the bold line.
    """
    means = trailing_mean(values, SMOOTH)
    x = bin_means(steps, _MOST_POINTS)
    axes.plot(x, bin_means(values, _MOST_POINTS), color=color, alpha=0.3, linewidth=0.9)
    axes.plot(
        x,
        bin_means(means, _MOST_POINTS),
        color=color,
        linewidth=width,
        linestyle=style,
        marker="o" if len(x) == 1 else None,
        label=line_label(fill(f"{name} {means[-1]:.2f}", _NAME_WRAP)) if name else None,
    )


def draw_level(axes: "Axes", name: str, height: float) -> None:
    """Draw a dotted reference line."""
    label = line_label(fill(f"{name} {height:.2f}", _NAME_WRAP))
    axes.axhline(height, color=LEVEL, linewidth=1.0, linestyle=(0, (1, 3)), zorder=1, label=label)


def line_label(text: str) -> str:
    """Return the label of a line; matplotlib would not show one that begins with an underscore."""
    return f" {text}" if text.startswith("_") else text


def name_lines(axes: "Axes") -> None:
    """Write the names of lines to the right of their axes, those that end highest first."""
    lines: list[Any] = axes.get_legend_handles_labels()[0]
    lines.sort(key=lambda line: -line.get_ydata()[-1])
    legend = axes.legend(
        handles=lines,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        labelcolor="linecolor",
        fontsize=9,
        handlelength=1.2,
    )
    legend.set_frame_on(False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def tidy(axes: "Axes") -> None:
    """Give axes the style of all charts, with whole numbers on the x axis."""
    from matplotlib.ticker import MaxNLocator

    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def is_picture_name(path: Path) -> bool:
    """Return whether a file's name ends in .png or .svg, in any case."""
    return path.suffix.lower() in PICTURE_FORMATS


def add_caption(figure: "Figure", text: str) -> None:
    """Write small text below the figure."""
    figure.supxlabel(text, fontsize=7.5, x=0.01, ha="left", color=_CAPTION, parse_math=False)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a picture in the format that its name ends in; see `save_text`."""
    file_format = PICTURE_FORMATS[path.suffix.lower()]
    save_text(path, _rendered(figure, file_format))


def data_address(figure: "Figure") -> str:
    """Return the figure as the `src` of an image: an SVG in a data: address."""
    # Six decimals of each coordinate would be half of a page; the numbers of labels stay whole.
    svg = _SVG_PATH.sub(lambda path: _LONG_DECIMALS.sub(rb"\1", path[0]), _rendered(figure, "svg"))
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _rendered(figure: "Figure", file_format: str) -> bytes:
    """Return the content of a file.

    Equal runs give equal files, and the text of an SVG stays text.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    # Names come from run folders; a dollar in one would begin a formula.
    for artist in figure.findobj(Text):
        artist.set_text(visible(artist.get_text()))
        artist.set_parse_math(False)
    content = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else None
    with (
        rc_context({"svg.hashsalt": "hanabi", "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        # Names may be of any script; in an SVG the reader's font draws them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(content, format=file_format, dpi=_DPI, metadata=metadata)
    return content.getvalue()
