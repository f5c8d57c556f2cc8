"""The learning curve of a training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts.labels import Label, write_labels
from hanabi_grpo.runs.evaluation_result import EvaluationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCORE = "score/mean"
_BAD_REPLIES = {"illegal_per_game": ("illegal", "#1f5fa8"), "unparsable_per_game": ("unparsable", "#b5651d")}
"""Figures of the lower picture, their names and colours."""
_REFERENCE, _ATTAINABLE, _CURVE, _POINTS = "#555555", "#2e7d32", "#1f5fa8", "#c62828"
_WINDOW = 9
_SIZE = (9.0, 6.4)
_HEIGHTS = (3.0, 1.0)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's `metrics.jsonl` that carry a score, by step.

    Raises:
        SettingsError: The file is missing, a line is no JSON object, or no row has "step" and "score/mean".
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); give the run folder of a training.") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise SettingsError(f"{path} line {number}: not JSON ({error}).") from error
        if not isinstance(row, dict):
            raise SettingsError(f"{path} line {number}: not a JSON object.")
        if isinstance(row.get("step"), int) and isinstance(row.get(_SCORE), int | float):
            rows.append(row)
    if not rows:
        raise SettingsError(f'{path}: no row has "step" and "{_SCORE}"; the run ended before its first step.')
    return sorted(rows, key=lambda row: int(row["step"]))


def learning_curve(
    metrics_path: Path,
    out_png: Path,
    before: EvaluationResult,
    after: EvaluationResult,
    *,
    references: Sequence[EvaluationResult] = (),
) -> None:
    """Draw mean score per step with the evaluations before and after, and bad replies below.

    Args:
        metrics_path: A run's `metrics.jsonl`.
        out_png: File to write; its folder is made where it is missing.
        before: Evaluation of the base model, drawn at step 0.
        after: Evaluation of the trained model, drawn at the last step.
        references: Other teams on the same board, drawn as level lines; beside them what is attainable.

    Raises:
        SettingsError: The metrics cannot be read.
    """
    rows = read_metrics(metrics_path)
    # The object interface: pyplot would choose a window system and keep every figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    score, bad = figure.subplots(2, 1, sharex=True, height_ratios=_HEIGHTS)
    last = int(rows[-1]["step"])
    levels = [(result.label, result.mean, _REFERENCE) for result in references]
    if after.attainable is not None:
        levels.append(("attainable", after.attainable, _ATTAINABLE))
    # Room above for what is drawn, but never above what the board allows by more than a line's width.
    highest = max([*(mean for _, mean, _ in levels), before.mean, after.mean, 0.5])
    score.set_ylim(0, min(1.02 * after.reachable_max, 1.35 * highest))
    labels = [_draw(score, rows, _SCORE, "training games", _CURVE)]
    for name, mean, color in levels:
        score.axhline(mean, color=color, linewidth=1.0, linestyle=(0, (1, 3)), zorder=1)
        labels.append(Label(text=f"{name} {mean:.2f}", y=mean, color=color))
    for x, result in ((0, before), (last, after)):
        score.errorbar(
            [x], [result.mean], yerr=[2 * result.standard_error], fmt="o", color=_POINTS, capsize=5, markersize=7,
            zorder=5,
        )  # fmt: skip
    score.annotate(
        f"before {before.mean:.2f}", (0, before.mean), textcoords="offset points", xytext=(9, -4), color=_POINTS,
        va="top", fontweight="bold",
    )  # fmt: skip
    labels.append(Label(text=f"after {after.mean:.2f}", y=after.mean, color=_POINTS, bold=True))
    share = _SIZE[1] / sum(_HEIGHTS)
    write_labels(score, labels, inches=_HEIGHTS[0] * share)
    score.set_ylabel(f"mean score, at most {after.reachable_max}")
    score.set_title(f"{after.num_players} players on {after.preset}", loc="left", parse_math=False)
    labels = [_draw(bad, rows, figure_name, name, color) for figure_name, (name, color) in _BAD_REPLIES.items()]
    bad.set_ylim(bottom=0)
    write_labels(bad, [label for label in labels if label.text], inches=_HEIGHTS[1] * share)
    bad.set_ylabel("bad replies\nper game")
    bad.set_xlabel("training step")
    for axes in (score, bad):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    bad.set_xlim(-0.03 * last, 1.03 * last)
    figure.supxlabel(
        f"Thin: each step; bold: mean of the last {_WINDOW}. Points: {after.num_deals} deals of suite {after.suite}, "
        "±2 standard errors.",
        fontsize=8.5, x=0.01, ha="left", color="#333333",
    )  # fmt: skip
    out_png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_png, dpi=130)


def _draw(axes: "Axes", rows: Sequence[dict[str, Any]], key: str, name: str, color: str) -> Label:
    """Draw a figure of the rows that have it; return the label of its line, without text where no row has it."""
    known = [(int(row["step"]), float(row[key])) for row in rows if row.get(key) is not None]
    if not known:
        return Label(text="", y=0.0, color=color)
    steps, values = zip(*known, strict=True)
    means = trailing_mean(values, _WINDOW)
    axes.plot(steps, values, color=color, alpha=0.3, linewidth=1)
    axes.plot(steps, means, color=color, linewidth=2.2, marker="o" if len(steps) == 1 else None)
    return Label(text=f"{name} {means[-1]:.2f}", y=means[-1], color=color)
