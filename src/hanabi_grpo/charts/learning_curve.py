"""The learning curve of a training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation_result import EvaluationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCORE, _ILLEGAL = "score/mean", "illegal_per_game"
_REFERENCE_STYLES = (("#8c8c8c", ":"), ("#b5651d", "-."), ("#2e7d32", "--"), ("#6a3d9a", (0, (1, 3))))
_CURVE = "#1f5fa8"
_POINTS = "#c62828"


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


def smooth(values: Sequence[float], width: int) -> list[float]:
    """Return the centred moving mean; at both ends the window shrinks and stays centred.

    Example:
        smooth([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 3.0, 4.0, 3.0]
    """
    means = []
    for index in range(len(values)):
        reach = min(width // 2, index, len(values) - 1 - index)
        window = values[index - reach : index + reach + 1]
        means.append(sum(window) / len(window))
    return means


def learning_curve(
    metrics_path: Path,
    out_png: Path,
    before: EvaluationResult,
    after: EvaluationResult,
    *,
    references: Sequence[EvaluationResult] = (),
) -> None:
    """Draw mean score per step with the evaluations before and after, and illegal replies below.

    Args:
        metrics_path: A run's `metrics.jsonl`.
        out_png: File to write; its folder is made where it is missing.
        before: Evaluation of the base model, drawn at step 0.
        after: Evaluation of the trained model, drawn at the last step.
        references: Other teams on the same board, drawn as level lines.

    Raises:
        SettingsError: The metrics cannot be read.
    """
    rows = read_metrics(metrics_path)
    # The object interface: pyplot would choose a window system and keep every figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    score, illegal = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    steps = [int(row["step"]) for row in rows]
    _curve(score, steps, [float(row[_SCORE]) for row in rows], "training games (sampled)")
    for (color, style), result in zip(_REFERENCE_STYLES, references, strict=False):
        score.axhline(
            result.mean, color=color, linestyle=style, linewidth=1.4, label=f"{result.label} {result.mean:.2f}"
        )
    last = max(steps)
    for x, result, name in ((0, before, "before"), (last, after, "after")):
        score.errorbar(
            [x], [result.mean], yerr=[2 * result.standard_error],
            fmt="o", color=_POINTS, capsize=5, markersize=7, zorder=5,
            label="held-out deals, ±2 standard errors" if name == "before" else None,
        )  # fmt: skip
        score.annotate(
            f"{name} {result.mean:.2f}", (x, result.mean), textcoords="offset points",
            xytext=(10, -16) if x == 0 else (8, -22), ha="left" if x == 0 else "right",
            color=_POINTS, fontweight="bold",
        )  # fmt: skip
    score.set_ylim(0, min(after.reachable_max, 1.35 * max([*map(_mean, references), before.mean, after.mean, 0.5])))
    score.set_ylabel(f"mean score (maximum {after.reachable_max})")
    board = f"{after.preset} (board {after.spec_hash})"
    score.set_title(f"{after.num_players} players on {board}, {after.num_deals} held-out deals")
    score.legend(loc="upper left", fontsize=9, ncols=2, framealpha=0.9)
    known = [
        (step, float(row[_ILLEGAL])) for step, row in zip(steps, rows, strict=True) if row.get(_ILLEGAL) is not None
    ]
    if known:
        _curve(illegal, [step for step, _ in known], [value for _, value in known], "illegal replies")
    illegal.set_ylim(bottom=0)
    illegal.set_ylabel("illegal replies\nper game")
    illegal.set_xlabel("training step")
    for axes in (score, illegal):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    illegal.set_xlim(-0.03 * last, 1.03 * last)
    out_png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_png, dpi=130)


def _curve(axes: "Axes", steps: Sequence[int], values: Sequence[float], label: str) -> None:
    axes.plot(steps, values, color=_CURVE, alpha=0.3, linewidth=1)
    axes.plot(steps, smooth(values, 9), color=_CURVE, linewidth=2.2, label=label)


def _mean(result: EvaluationResult) -> float:
    return result.mean
