"""Learning curves of several arms with bands over their runs."""

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from hanabi_grpo.evaluation.comparison.arms import SCORE
from hanabi_grpo.evaluation.comparison.figures import Curve
from hanabi_grpo.evaluation.comparison.tables import Comparison
from hanabi_grpo.evaluation.tables import BEST_KNOWN
from hanabi_grpo.report.charts.canvas import (
    add_caption,
    draw_level,
    line_label,
    make_figure,
    name_lines,
    save_figure,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""B. Wong, Points of view: Color blindness, Nature Methods 8, 2011, without its yellow, which is
pale on white."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers, which tell arms apart without colors."""
_NUM_MARKERS = 8
"""Markers along a line."""
_WIDTH = 10.0
"""Inches."""
_HEIGHT = 6.0
_TITLE_WRAP = 80
"""Characters of a title's line."""
_CAPTION_WRAP = 125


def draw_bands(path: Path, comparison: Comparison) -> None:
    """Draw a line with a band per arm, and the best known score.

    With more than seven arms, colors repeat.

    Args:
        path: The file.
        comparison: The arms.

    Raises:
        SettingsError: The file cannot be written, see `save_figure`.
    """
    from cycler import cycler

    figure = make_figure(_WIDTH, _HEIGHT)
    axes = figure.subplots()
    axes.set_prop_cycle(cycler(color=_COLORS, marker=_MARKERS))
    example = comparison.example
    if example is not None and example.attainable is not None:
        draw_level(axes, BEST_KNOWN, example.attainable)
    for curve in comparison.curves:
        _draw_curve(axes, curve)
    _limit_scores(axes, comparison)
    name_lines(axes)
    axes.set_ylabel(_score_label(comparison))
    axes.set_xlabel("training step")
    title = f"Training on {comparison.preset}" if comparison.preset else "Training"
    axes.set_title(fill(title, _TITLE_WRAP), loc="left", fontsize=12, parse_math=False)
    add_caption(figure, fill(_caption(comparison), _CAPTION_WRAP))
    tidy(axes)
    save_figure(figure, path)


def _draw_curve(axes: "Axes", curve: Curve) -> None:
    """Draw the line of one arm, with its band where there are enough runs."""
    steps_per_marker = max(1, len(curve.x) // _NUM_MARKERS)
    [line] = axes.plot(
        curve.x,
        curve.mean,
        linewidth=2.2,
        markersize=6.5,
        markevery=(steps_per_marker // 2, steps_per_marker),
        markeredgecolor="white",
        zorder=3,
        label=line_label(f"{curve.name} {curve.mean[-1]:.2f}"),
    )
    if curve.has_band:
        axes.fill_between(
            curve.x,
            curve.low,
            curve.high,
            color=line.get_color(),
            alpha=0.16,
            zorder=2,
        )


def _limit_scores(axes: "Axes", comparison: Comparison) -> None:
    """Cut the axis if a band reaches beyond the score range."""
    if comparison.example is not None:
        least, greatest = comparison.example.score_range
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, least), min(high, greatest))
    lowest = min(float(curve.mean.min()) for curve in comparison.curves)
    if lowest >= 0:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))


def _score_label(comparison: Comparison) -> str:
    if comparison.metric != SCORE:
        return comparison.label
    label = f"{comparison.label} of training games"
    if comparison.example is not None:
        label += f", at most {comparison.example.score_range[1]:g}"
    return label


def _caption(comparison: Comparison) -> str:
    """Return an explanation of the lines and bands."""
    window = comparison.window
    trailing = f"mean of the last {window} steps, " if window > 1 else ""
    caption = f"Lines: {trailing}mean over runs."
    num_runs = {curve.num_runs for curve in comparison.curves if curve.has_band}
    if num_runs:
        numbers = " or ".join(map(str, sorted(num_runs)))
        caption += f" Bands: 95 % t interval of the mean over {numbers} runs, pointwise."
    return caption
