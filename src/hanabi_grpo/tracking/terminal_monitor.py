"""The line that the terminal shows for each step."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hanabi_grpo.tracking.monitor import Monitor, StepRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Figure:
    """One figure of the line."""

    name: str
    """Its name in the metrics."""
    label: str
    """Text before the value, including the space after the previous figure."""
    form: str
    """How its value is formatted."""

    def text(self, metrics: Mapping[str, Any]) -> str:
        """Return label and value; "" if the step has no value."""
        value = metrics.get(self.name)
        if value is None:
            return ""
        return f"{self.label} {value:{self.form}}"


_SCORE_FIGURES = (
    _Figure("score/mean", "  score", ".2f"),
    _Figure("score/se", " ±", ".2f"),
)
_VERSUS_FIGURES = (_Figure("exploitability", "  exploitability", ".3f"),)
"""For competing players; in self-play, the mean return of one seat is not informative."""
_OTHER_FIGURES = (
    _Figure("illegal_per_game", "  illegal", ".2f"),
    _Figure("unparsable_per_game", "  unparsable", ".2f"),
    _Figure("grad_norm", "  grad", ".3f"),
)
"""Fits a terminal of 100 columns."""


class TerminalMonitor(Monitor):
    """Logs one line per step.

    Example: "step 8/1000  score 1.34 ± 0.12  illegal 0.10  grad 0.219  0:33:04 left".
    """

    name = "the terminal's line"

    def __init__(self, *, has_common_score: bool = True) -> None:
        """Choose the figures.

        Args:
            has_common_score: Whether one score measures how well all players played; otherwise the
                exploitability is shown in the steps that measure it.
        """
        outcome = _SCORE_FIGURES if has_common_score else _VERSUS_FIGURES
        self._figures = (*outcome, *_OTHER_FIGURES)
        self._first_step: int | None = None
        """First step that this process logged."""
        self._first_time = 0.0
        """Time at which it ended, in seconds since the epoch."""

    def log(self, row: StepRow) -> None:
        """Log the step's figures and the remaining time."""
        if self._first_step is None:
            self._first_step = row.step
            self._first_time = time.time()
        text = "".join(figure.text(row.metrics) for figure in self._figures)
        text += self._time_left(row)
        logger.info("step %d/%d%s", row.step, row.max_steps, text or "  no usable games")

    def _time_left(self, row: StepRow) -> str:
        """Return the remaining time of the run, estimated from the mean time of a step.

        The first step of this process is excluded, because it includes waiting for the server and
        warming up.
        """
        assert self._first_step is not None
        num_steps = row.step - self._first_step
        num_left = row.max_steps - row.step
        if not num_steps or not num_left:
            return ""
        seconds_per_step = (time.time() - self._first_time) / num_steps
        return f"  {timedelta(seconds=round(seconds_per_step * num_left))} left"
