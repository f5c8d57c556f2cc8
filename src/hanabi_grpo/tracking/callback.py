"""The trainer's callback: passes each step's metrics to the monitors, and watches for collapse."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hanabi_grpo.runs.alarms import AlarmChange, AlarmWatch, alarms_of
from hanabi_grpo.runs.history import IncidentLog, read_history
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.tracking.file_monitor import METRICS, FileMonitor
from hanabi_grpo.tracking.interval import IntervalMonitor
from hanabi_grpo.tracking.monitor import Monitor, MonitorGroup, StepRow
from hanabi_grpo.tracking.tensorboard_monitor import TensorBoardMonitor
from hanabi_grpo.tracking.terminal_monitor import TerminalMonitor
from hanabi_grpo.tracking.wandb_monitor import WandbMonitor

logger = logging.getLogger(__name__)


def make_monitors(settings: Settings, run_folder: Path) -> list[Monitor]:
    """Return a run's monitors: always file and terminal, and those that REPORT_TO lists.

    The file comes first, because W&B's mirror reads it. It has a row for every step; the others
    average LOGGING_STEPS steps (for W&B, the mirror does so).
    """
    every = settings.logging_steps
    metrics_file = run_folder / METRICS
    monitors: list[Monitor] = [FileMonitor(run_folder)]
    if "tensorboard" in settings.report_to:
        monitors.append(IntervalMonitor(TensorBoardMonitor(run_folder), every, metrics_file))
    if "wandb" in settings.report_to and settings.wandb_mode != "disabled":
        monitors.append(WandbMonitor(run_folder))
    has_common_score = settings.setup().spec.has_common_score
    terminal = TerminalMonitor(has_common_score=has_common_score)
    monitors.append(IntervalMonitor(terminal, every, metrics_file))
    return monitors


class TrackingCallback(TrainerCallback):
    """The adapter between transformers' trainer and our monitors; also owns the alarm watch.

    An alarm that starts or ends is logged as an incident; `alarm/<name>` in each row shows which
    alarms are raised.
    """

    def __init__(
        self, settings: Settings, run_folder: Path, monitors: Sequence[Monitor] | None = None
    ) -> None:
        """Prepare the callback; the monitors start when training does.

        Args:
            settings: The run's settings.
            run_folder: The run folder.
            monitors: The monitors that receive the metrics; None: those of `make_monitors`.
        """
        if monitors is None:
            monitors = make_monitors(settings, run_folder)
        self._metrics_file = run_folder / METRICS
        self._monitors = MonitorGroup(monitors)
        self._alarms = alarms_of(settings_values(settings))
        self._watch = AlarmWatch(self._alarms)
        self._incidents = IncidentLog(run_folder)
        self._started = time.time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the monitors before the first step; a wrong setting stops the run immediately.

        Raises:
            SettingsError: A monitor is misconfigured.
        """
        self._watch = self._resumed_watch(state.global_step)
        for (name, subject), since in self._watch.raised.items():
            of_subject = f" of {subject}" if subject else ""
            logger.info("alarm %s%s has been raised since step %d", name, of_subject, since)
        self._monitors.start(state.global_step)

    def _resumed_watch(self, step: int) -> AlarmWatch:
        """Return the alarms as they stood at the checkpoint of a step."""
        rows: list[dict[str, Any]] = []
        try:
            rows = read_history(self._metrics_file)
        except OSError as error:
            logger.warning(
                "metrics.jsonl cannot be read (%s): the alarms start over", error.strerror
            )
        return AlarmWatch.after((row for row in rows if row["step"] <= step), self._alarms)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Pass one step's metrics to the monitors.

        Args:
            args: Unused.
            state: transformers' state, with the current step and the last step.
            control: Unused.
            logs: The metrics; logs without games come from transformers itself and are ignored.
        """
        if not logs or "games" not in logs:
            return
        changes = self._watch.update({"step": state.global_step, **logs})
        for change in changes:
            self._record(change)
        self._monitors.log(
            StepRow(
                step=state.global_step,
                max_steps=state.max_steps,
                seconds=time.time() - self._started,
                metrics={**logs, **self._watch.metrics()},
            )
        )

    def _record(self, change: AlarmChange) -> None:
        kind = "alarm" if change.since is None else "alarm_over"
        logger.warning("%s: %s", kind, "\n    ".join(change.lines))
        details = {
            "step": change.step,
            "alarm": change.alarm.name,
            "subject": change.subject,
            "value": change.value,
            "level": change.level,
        }
        self._incidents.write(kind, change.message, details)

    def close(self, *, exit_code: int = 0) -> None:
        """Close the monitors, including those of a run that was stopped."""
        self._monitors.finish(exit_code)
