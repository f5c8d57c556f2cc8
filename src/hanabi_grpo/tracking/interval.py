"""LOGGING_STEPS: one row for several steps, as in transformers.

`metrics.jsonl` keeps every step, because alarms, resumes and comparisons read it. The terminal,
TensorBoard and W&B get the means over each interval.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from hanabi_grpo.runs.history import number, read_whole_history
from hanabi_grpo.tracking.monitor import Monitor, StepRow

FIELDS_OF_LAST_STEP = ("step", "seconds")
"""Fields of a row of `metrics.jsonl` that are not averaged."""


class Interval:
    """Averages the rows of an interval of steps; intervals end at multiples of their length.

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
        """Last step of the rows that are waiting for the interval's end; None if there are none."""

    def is_amid(self, step: int) -> bool:
        """Return whether a step lies within an interval, so that later steps join earlier ones."""
        return step % self._num_steps != 0

    def resume(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the earlier steps of the interval in which a run is resumed.

        They only count for the row at the interval's end: without a later step, nothing is left to
        log.

        Args:
            step: The step that the run resumes from.
            rows: Rows of `metrics.jsonl`; those of other intervals and of later steps are ignored.
        """
        last_of_earlier = step - step % self._num_steps
        for row in rows:
            if last_of_earlier < row["step"] <= step:
                figures = {name: row[name] for name in row if name not in FIELDS_OF_LAST_STEP}
                self._count(figures)

    def _count(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            figure = number(value)
            if figure is not None:
                self._values.setdefault(name, []).append(figure)

    def add(self, step: int, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
        """Add a step's figures; return the interval's if this step ends it, else None.

        Args:
            step: The step, from 1.
            metrics: The step's figures by name. Values that are not finite numbers count as absent.
        """
        if self._num_steps == 1:
            return dict(metrics)
        self._last_step = step
        self._count(metrics)
        if step % self._num_steps:
            return None
        rest = self.take_rest()
        return None if rest is None else rest[1]

    def take_rest(self) -> tuple[int, dict[str, Any]] | None:
        """Return the last step and the figures of an unfinished interval; None if it is empty.

        Each figure is the mean over the steps that have it.
        """
        if self._last_step is None:
            return None
        rest = self._last_step, {name: fmean(values) for name, values in self._values.items()}
        self._values = {}
        self._last_step = None
        return rest


class IntervalMonitor(Monitor):
    """Passes one row per interval to another monitor, and the remaining steps at the end."""

    def __init__(self, monitor: Monitor, num_steps: int, metrics_file: Path) -> None:
        """Wrap a monitor.

        Args:
            monitor: The monitor that receives one row per interval.
            num_steps: LOGGING_STEPS.
            metrics_file: `metrics.jsonl` of the run, with the steps before a resume.
        """
        self.name = monitor.name
        self.monitor = monitor
        self._metrics_file = metrics_file
        self._interval = Interval(num_steps)
        self._last_row: StepRow | None = None

    def start(self, step: int) -> None:
        """Start the monitor; the interval of a resumed run includes its steps before the resume.

        Raises:
            SettingsError: The monitor is misconfigured.
        """
        self.monitor.start(step)
        if not self._interval.is_amid(step):
            return
        try:
            rows = read_whole_history(self._metrics_file).rows
        except OSError:
            # The callback says so. The first interval then has only the steps that follow.
            return
        self._interval.resume(step, rows)

    def log(self, row: StepRow) -> None:
        """Log the interval if this row ends it, or if this is the run's last step."""
        self._last_row = row
        figures = self._interval.add(row.step, row.metrics)
        if figures is not None:
            self._log(row, figures)
        elif row.step == row.max_steps:
            self._log_rest()

    def finish(self, exit_code: int) -> None:
        """Log the remaining steps, and close the monitor."""
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
