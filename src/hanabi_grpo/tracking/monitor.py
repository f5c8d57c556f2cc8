"""What every monitor is: something that receives the metrics of each step.

A monitor that fails never stops the training: the first failure is reported, and the run continues.
A monitor that is misconfigured stops the run before its first step, by a SettingsError in `start`.
To add one, subclass `Monitor` in a file of its own, name it in `callback.make_monitors`, and, if
users choose it, in `settings.values.MONITORS`.
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
    """Figures by name, e.g. {"score/mean": 1.5}; None where a step had nothing to measure."""

    def as_json(self) -> dict[str, Any]:
        """Return the row as `metrics.jsonl` has it."""
        return {"step": self.step, "seconds": round(self.seconds, 2), **self.metrics}


class Monitor:
    """Base class of all monitors; each method does nothing here."""

    name = "monitor"
    """What messages call it."""

    def start(self, step: int) -> None:
        """Prepare before the first step.

        Args:
            step: Steps done before: 0, or those of the checkpoint that a run resumes from. What was
                recorded of later steps must not appear twice.

        Raises:
            SettingsError: It is misconfigured, which ends the run.
        """

    def log(self, row: StepRow) -> None:
        """Receive the metrics of one step."""

    def finish(self, exit_code: int) -> None:
        """Close after the last step, also of a run that was stopped.

        Args:
            exit_code: 0 for a run that ended as it should.
        """


class MonitorGroup:
    """Calls several monitors, none of which can stop the training once it has begun."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = list(monitors)
        self._reported: set[Monitor] = set()

    def start(self, step: int) -> None:
        """Start every monitor; one that cannot be started is reported and left out.

        Args:
            step: See `Monitor.start`.

        Raises:
            SettingsError: A monitor is misconfigured. Those that were started are closed.
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
        """Hand the metrics of one step to every monitor."""
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
            # Whatever it is: monitoring must not end a training.
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
