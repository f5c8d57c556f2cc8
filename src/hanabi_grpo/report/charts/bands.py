"""Learning curves of several arms with bands over their runs."""

from pathlib import Path
from textwrap import fill

from hanabi_grpo.evaluation.comparison.arms import SCORE
from hanabi_grpo.evaluation.comparison.tables import Comparison
from hanabi_grpo.evaluation.tables import ATTAINABLE
from hanabi_grpo.report.charts.canvas import (
    add_caption,
    draw_level,
    make_figure,
    name_lines,
    save_figure,
    tidy,
)

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""B. Wong, Points of view: Color blindness, Nature Methods 8, 2011, without its yellow, which is
pale on white.
"""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""They tell arms apart where colours are lost."""
_NUM_MARKERS = 8
_SIZE = (10.0, 6.0)


def draw_bands(path: Path, found: Comparison) -> None:
    """Draw one line with a band per arm, what is attainable, and their names at the right; write a
    PNG.

    Of more than seven arms, colours repeat. Raises as `save_figure`.
    """
    from cycler import cycler

    figure, scale = make_figure(*_SIZE), found.example.score_range if found.example else None
    axes = figure.subplots()
    axes.set_prop_cycle(cycler(color=_COLORS, marker=_MARKERS))
    if found.example and found.example.attainable is not None:
        draw_level(axes, ATTAINABLE, found.example.attainable)
    for curve in found.curves:
        every = max(1, len(curve.x) // _NUM_MARKERS)
        [line] = axes.plot(
            curve.x, curve.mean, linewidth=2.2, markersize=6.5, markevery=(every // 2, every), markeredgecolor="white",
            zorder=3, label=f"{curve.name} {curve.mean[-1]:.2f}",
        )  # fmt: skip
        if curve.has_band:
            axes.fill_between(
                curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.16, zorder=2
            )
    if scale:
        # A band may reach beyond what can be scored.
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, scale[0]), min(high, scale[1]))
    if min(float(curve.mean.min()) for curve in found.curves) >= 0:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    name_lines(axes)
    most = f", at most {scale[1]:g}" if scale else ""
    axes.set_ylabel(
        f"{found.label} of training games{most}" if found.metric == SCORE else found.label
    )
    axes.set_xlabel("training step")
    heading = f"Training on {found.preset}" if found.preset else "Training"
    axes.set_title(fill(heading, 80), loc="left", fontsize=12, parse_math=False)
    runs = {curve.num_runs for curve in found.curves if curve.has_band}
    trailing = f"mean of the last {found.window} steps, " if found.window > 1 else ""
    parts = [f"Lines: {trailing}mean over runs."]
    if runs:
        numbers = " or ".join(map(str, sorted(runs)))
        parts.append(f"Bands: 95 % t interval of the mean over {numbers} runs, step by step.")
    add_caption(figure, fill(" ".join(parts), 125))
    tidy(axes)
    save_figure(figure, path)
