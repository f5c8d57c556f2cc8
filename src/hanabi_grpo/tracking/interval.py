"""LOGGING_STEPS: one row for several steps, as transformers logs them.

`metrics.jsonl` keeps every step, since alarms, resumes and comparisons read it. The terminal,
TensorBoard and W&B get the means of each interval.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from hanabi_grpo.runs.history import number
from hanabi_grpo.tracking.monitor import Monitor, StepRow


class Interval:
    """Joins the rows of an interval of steps; intervals end at multiples of its length.

    Example:
        interval = Interval(2)
        interval.add(1, {"loss": 0.5}) is None
        interval.add(2, {"loss": 0.7, "validation/score/mean": 1.0}) == {
            "loss": 0.6,
            "validation/score/mean": 1.0,
        }
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._values: dict[str, list[float]] = {}
        self._last_step: int | None = None
        """Of the rows that wait for the interval's end; None where none do."""

    def add(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
        """Take a step's figures; returns the interval's where the step ends it, else None.

        Args:
            step: The step, from 1.
            metrics: Its figures by name. What is no finite number counts as absent.
        """
        if self._num_steps == 1:
            return dict(metrics)
        self._last_step = step
        for name, value in metrics.items():
            figure = number(value)
            if figure is not None:
                self._values.setdefault(name, []).append(figure)
        if step % self._num_steps:
            return None
        rest = self.take_rest()
        return None if rest is None else rest[1]

    def take_rest(self) -> tuple[int, dict[str, Any]] | None:
        """Return the last step and the figures of an interval that is not over; None without any.

        A figure is the mean over the steps that have it.
        """
        if self._last_step is None:
            return None
        rest = self._last_step, {name: fmean(values) for name, values in self._values.items()}
        self._values = {}
        self._last_step = None
        return rest


class IntervalMonitor(Monitor):
    """Hands another monitor one row for each interval, and what is left at the end of the run."""

    def __init__(self, monitor: Monitor, num_steps: int) -> None:
        """Take a monitor.

        Args:
            monitor: The one that gets fewer rows.
            num_steps: LOGGING_STEPS.
        """
        self.name = monitor.name
        self.monitor = monitor
        self._interval = Interval(num_steps)
        self._last_row: StepRow | None = None

    def start(self, step: int) -> None:
        """Start the monitor.

        Raises:
            SettingsError: It is misconfigured.
        """
        self.monitor.start(step)

    def log(self, row: StepRow) -> None:
        """Log the interval that the row ends, or that the run's last step cuts short."""
        self._last_row = row
        figures = self._interval.add(row.step, row.metrics)
        if figures is not None:
            self._log(row, figures)
        elif row.step == row.max_steps:
            self._log_rest()

    def finish(self, exit_code: int) -> None:
        """Log what is left, and close the monitor."""
        self._log_rest()
        self.monitor.finish(exit_code)

    def _log_rest(self) -> None:
        rest = self._interval.take_rest()
        if rest is not None and self._last_row is not None:
            self._log(self._last_row, rest[1])

    def _log(self, row: StepRow, figures: Mapping[str, Any]) -> None:
        self.monitor.log(
            StepRow(
                step=row.step, max_steps=row.max_steps, seconds=row.seconds, metrics=dict(figures)
            )
        )
