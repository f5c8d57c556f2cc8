"""A checkpoint's running score, and which checkpoint is the best."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.runs.history import number

WINDOW = 10
"""Steps behind a running score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningScore:
    """Mean score of the training games in the last steps up to a checkpoint.

    These are sampled games on training deals, played by the versions that led to the checkpoint; a score on held-out
    deals is what `hanabi-grpo evaluate` measures.
    """

    step: int
    mean: float
    standard_error: float | None
    """Of the mean, from the spread of the steps' means, so that deals, sampling and what was learned meanwhile are in
    it; None for a single step."""
    num_steps: int
    """Steps it is of, at most WINDOW."""

    @property
    def text(self) -> str:
        """Return e.g. "1.99 ± 0.05 over 10 steps"."""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2f}"
        return f"{self.mean:.2f}{error} over {self.num_steps} step{'s' if self.num_steps != 1 else ''}"


def running_score(rows: Iterable[Mapping[str, Any]], step: int) -> RunningScore | None:
    """Return the score of the checkpoint of a step; None when no step up to it had a score.

    Args:
        rows: Of `metrics.jsonl`, by step.
        step: Optimizer steps behind the checkpoint.
    """
    scores = [score for row in rows if row["step"] <= step and (score := number(row.get("score/mean"))) is not None]
    scores = scores[-WINDOW:]
    if not scores:
        return None
    mean = sum(scores) / len(scores)
    error = None
    if len(scores) > 1:
        error = math.sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1) / len(scores))
    return RunningScore(step=step, mean=mean, standard_error=error, num_steps=len(scores))


def is_best(score: RunningScore | None, earlier: Sequence[RunningScore]) -> bool:
    """Tell whether a checkpoint is better than all before it; one of fewer steps than WINDOW loses to any full one."""
    return score is not None and all(_rank(score) > _rank(other) for other in earlier if other.step != score.step)


def _rank(score: RunningScore) -> tuple[bool, float]:
    return score.num_steps >= WINDOW, score.mean
