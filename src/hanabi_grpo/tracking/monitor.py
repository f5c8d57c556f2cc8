"""The base class of monitors, which receive the metrics of each step.

A failing monitor never stops the training: its first failure is reported, and the run continues. A
misconfigured monitor stops the run before its first step by raising a SettingsError in `start`. To
add a monitor, subclass `Monitor` in a new file, add it to `callback.make_monitors` and, if users
can choose it, to `settings.values.MONITORS`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hanabi_grpo.errors import SettingsError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The metrics of one step."""

    step: int
    """Optimizer step, from 1."""
    max_steps: int
    """The step after which the run ends."""
    seconds: float
    """Time since this process began, in seconds."""
    metrics: Mapping[str, Any]
    """Figures by name, e.g. {"score/mean": 1.5}; None if a step had nothing to measure."""

    def as_json(self) -> dict[str, Any]:
        """Return the row as it is written to `metrics.jsonl`."""
        return {"step": self.step, "seconds": round(self.seconds, 2), **self.metrics}


class Monitor:
    """Base class of all monitors; its methods do nothing."""

    name = "monitor"
    """Name of the monitor in messages."""

    def start(self, step: int) -> None:
        """Prepare before the first step.

        Args:
            step: Number of steps already done: 0, or the step of the checkpoint that the run
                resumes from. Later steps that were already recorded must not appear twice.

        Raises:
            SettingsError: The monitor is misconfigured, which ends the run.
        """

    def log(self, row: StepRow) -> None:
        """Receive the metrics of one step."""

    def finish(self, exit_code: int) -> None:
        """Close the monitor after the last step, or when the run is stopped.

        Args:
            exit_code: 0 for a run that finished normally.
        """


class MonitorGroup:
    """Calls several monitors; none of them can stop the training once it has started."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = list(monitors)
        self._reported: set[Monitor] = set()

    def start(self, step: int) -> None:
        """Start every monitor; one that cannot be started is reported and skipped.

        Args:
            step: See `Monitor.start`.

        Raises:
            SettingsError: A monitor is misconfigured. The monitors started before it are closed.
        """
        started: list[Monitor] = []
        for monitor in self._monitors:
            try:
                monitor.start(step)
            except SettingsError:
                self._monitors = started
                self.finish(exit_code=1)
                raise
            except Exception as error:
                self._report(monitor, "cannot be started", error)
            else:
                started.append(monitor)
        self._monitors = started

    def log(self, row: StepRow) -> None:
        """Pass the metrics of one step to every monitor."""
        for monitor in self._monitors:
            self._guard(monitor, "failed", partial(monitor.log, row))

    def finish(self, exit_code: int) -> None:
        """Close every monitor; a second call does nothing."""
        monitors = self._monitors
        self._monitors = []
        for monitor in monitors:
            self._guard(monitor, "could not be closed", partial(monitor.finish, exit_code))

    def _guard(self, monitor: Monitor, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            # No failure of monitoring may end the training.
            self._report(monitor, what, error)

    def _report(self, monitor: Monitor, what: str, error: Exception) -> None:
        if monitor in self._reported:
            return
        self._reported.add(monitor)
        logger.warning(
            "%s %s (%s: %s); training continues, and further failures of it are not reported",
            monitor.name,
            what,
            type(error).__name__,
            error,
        )
