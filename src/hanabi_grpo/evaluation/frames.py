"""Evaluations as a pandas frame; pandas is imported when a frame is made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hanabi_grpo.runs.evaluation_result import EvaluationResult

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "label",
    "lineup",
    "env",
    "preset",
    "num_players",
    "suite",
    "temperature",
    "top_p",
    "top_k",
    "num_tasks",
    "mean",
    "standard_error",
    "low",
    "high",
    "trained_steps",
)
"""Columns that every row has; one for each figure follows, e.g. "figure/bombed"."""


def result_frame(results: Sequence[EvaluationResult]) -> "pandas.DataFrame":
    """Return a row for each result: what was played, the mean score with its error, the figures."""
    import pandas

    rows = [result_row(result) for result in results]
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=list(COLUMNS))


def result_row(result: EvaluationResult) -> dict[str, Any]:
    """Return one result as the columns of `result_frame`."""
    estimate = result.estimate
    row: dict[str, Any] = {
        "label": result.label,
        "lineup": result.lineup,
        "env": result.env,
        "preset": result.preset,
        "num_players": result.num_players,
        "suite": result.suite,
        "temperature": result.temperature,
        "top_p": result.top_p,
        "top_k": result.top_k,
        "num_tasks": result.num_tasks,
        "mean": estimate.mean,
        "standard_error": estimate.standard_error,
        "low": estimate.low,
        "high": estimate.high,
        "trained_steps": result.trained_steps,
    }
    for name, value in result.figures.items():
        row[f"figure/{name}"] = value
    return row
