"""Learning curves of several arms with bands over their runs."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill

from hanabi_grpo.evaluation.comparison.curves import Axis, Curve
from hanabi_grpo.report.charts.canvas import LEVEL, add_caption, make_figure, save_figure, tidy
from hanabi_grpo.report.charts.labels import Label, write_labels

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""B. Wong, Points of view: Color blindness, Nature Methods 8, 2011, without its yellow, which is pale on white."""
_LINES = ("-", (0, (6, 2)), (0, (1, 1)), (0, (6, 2, 1, 2)), (0, (3, 1)), (0, (8, 2, 1, 2, 1, 2)))
_MARKERS = ("o", "s", "^", "D", "v")
"""Line styles and markers tell arms apart where colours are lost, or used again."""
_NUM_MARKERS = 8
_SIZE = (10.0, 6.0)


def draw_bands(
    path: Path,
    curves: Sequence[Curve],
    *,
    axis: Axis,
    window: int,
    title: str = "",
    preset: str = "",
    score_range: tuple[float, float] | None = None,
    references: Mapping[str, float] | None = None,
) -> None:
    """Draw one line with a band per arm, level lines, and their names at the right; write a PNG.

    Args:
        path: File to write; its folder is made where it is missing.
        curves: At least one; of more than seven, colours repeat.
        axis: What `Curve.x` is.
        window: Steps of the trailing mean, for the caption.
        title: Heading.
        preset: What was played, for the heading.
        score_range: Least and most that can be scored.
        references: Heights of level lines by name.

    Raises:
        SettingsError: The file cannot be written.
    """
    references = references or {}
    figure = make_figure(*_SIZE)
    axes = figure.subplots()
    axes.set_ylim(_limits(curves, references, score_range))
    labels = []
    for name, value in references.items():
        axes.axhline(value, color=LEVEL, linewidth=1.0, linestyle=(0, (1, 3)), zorder=1)
        labels.append(Label(text=f"{name} {value:.2f}", y=value, color=LEVEL))
    for curve, color, line, marker in zip(curves, cycle(_COLORS), cycle(_LINES), cycle(_MARKERS), strict=False):
        if curve.band:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.16, linewidth=0, zorder=2)
            for edge in (curve.low, curve.high):
                axes.plot(curve.x, edge, color=color, alpha=0.55, linewidth=0.6, zorder=2)
        every = max(1, len(curve.x) // _NUM_MARKERS)
        axes.plot(
            curve.x, curve.mean, color=color, linestyle=line, linewidth=2.2, marker=marker, markersize=6.5,
            markevery=(every // 2, every), markeredgecolor="white", zorder=3,
        )  # fmt: skip
        end = float(curve.mean[-1])
        labels.append(Label(text=f"{curve.name} {end:.2f}", y=end, color=color, bold=True))
    first, last = min(float(curve.x[0]) for curve in curves), max(float(curve.x[-1]) for curve in curves)
    margin = 0.01 * (last - first) or 0.5
    axes.set_xlim(first - margin, last + margin)
    write_labels(axes, labels)
    most = f", at most {score_range[1]:g}" if score_range else ""
    axes.set_ylabel(f"mean score of training games{most}")
    axes.set_xlabel("training step" if axis is Axis.STEPS else "games seen")
    heading = title or (f"Training on {preset}" if preset else "Training")
    axes.set_title(fill(heading, 80), loc="left", fontsize=12, parse_math=False)
    add_caption(figure, _caption(curves, window, preset if title else ""))
    tidy(axes, steps=False)
    save_figure(figure, path)


def _limits(
    curves: Sequence[Curve], references: Mapping[str, float], score_range: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the range of scores that is drawn; a band may reach beyond what can be scored, and is cut there."""
    bottom, top = score_range or (-float("inf"), float("inf"))
    lows = [max(bottom, float(curve.low.min())) for curve in curves]
    highs = [min(top, float(curve.high.max())) for curve in curves]
    low, high = min([*lows, *references.values()]), max([*highs, *references.values()])
    pad = 0.06 * (high - low) or 0.5
    return low - pad, high + pad


def _caption(curves: Sequence[Curve], window: int, preset: str) -> str:
    counts = {
        band: sorted({curve.num_runs for curve in curves if curve.band == band}) for band in ("t interval", "range")
    }
    parts = [f"Preset {preset}."] if preset else []
    parts.append(f"Lines: mean of the last {window} steps, mean over runs." if window > 1 else "Lines: mean over runs.")
    if counts["t interval"]:
        numbers = " or ".join(map(str, counts["t interval"]))
        parts.append(f"Bands: 95 % t interval of the mean over {numbers} runs, step by step.")
    if counts["range"]:
        parts.append("Bands of two runs: from the lower to the higher.")
    if any(not curve.band for curve in curves):
        parts.append("No band: one run.")
    return fill(" ".join(parts), 125)
