"""What the trainer calls: each step's row into `metrics.jsonl`, the terminal and W&B; and the
alarms.
"""

import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hanabi_grpo.runs.alarms import AlarmWatch, alarms_of
from hanabi_grpo.runs.history import IncidentLog, read_history
from hanabi_grpo.runs.run_folder import append_jsonl
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.tracking.mirror import Mirror

logger = logging.getLogger(__name__)

_SHOWN = {
    "score/mean": ("  score", ".2f"),
    "score/se": (" ±", ".2f"),
    "illegal_per_game": ("  illegal", ".2f"),
    "unparsable_per_game": ("  unparsable", ".2f"),
    "grad_norm": ("  grad", ".3f"),
}
"""What the terminal's line of a step has, in 100 columns: figure to its name there, and its
form.
"""


class TrackingCallback(TrainerCallback):
    """Writes `metrics.jsonl` in the run folder, prints a line per step, starts W&B's mirror, and
    watches for collapse.

    An alarm that is raised or over is an incident; `alarm/<name>` in each row says which are
    raised."""

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        """Prepare; W&B starts with training."""
        self.settings, self.run_folder = settings, run_folder
        self._mirror: Mirror | None = None
        self._alarms = alarms_of(settings_values(settings))
        self._watch = AlarmWatch(self._alarms)
        self._incidents = IncidentLog(run_folder)
        self._rows: list[dict[str, Any]] = []
        self._started = time.time()
        self._first: tuple[int, float] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start W&B before the first step, so that a wrong key or project stops the run at once, by
        a SettingsError.
        """
        rows: list[dict[str, Any]] = []
        try:
            rows = read_history(self.run_folder / "metrics.jsonl")
        except OSError as error:
            logger.warning(
                "metrics.jsonl cannot be read (%s): the alarms start anew", error.strerror
            )
        # A resumed run's alarms stand as they stood at its checkpoint.
        self._watch = AlarmWatch.after(
            (row for row in rows if row["step"] <= state.global_step), self._alarms
        )
        for (name, subject), since in self._watch.raised.items():
            logger.info(
                "alarm %s%s is raised since step %d",
                name,
                f" of {subject}" if subject else "",
                since,
            )
        if self.settings.report_to == "wandb" and self.settings.wandb_mode != "disabled":
            try:
                self._mirror = Mirror(self.run_folder, state.global_step)
            except OSError as error:
                logger.warning("W&B: its mirror cannot be started (%s); training goes on", error)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Write one step's figures."""
        if not logs or "games" not in logs:
            return
        changes = self._watch.update({"step": state.global_step, **logs})
        logs = {**logs, **self._watch.metrics()}
        self._rows.append(
            {"step": state.global_step, "seconds": round(time.time() - self._started, 2), **logs}
        )
        try:
            while self._rows:
                append_jsonl(self.run_folder / "metrics.jsonl", self._rows[0])
                del self._rows[0]
        except OSError as error:
            told = (
                "metrics.jsonl cannot be written (%s): %d rows are kept and written with the "
                "next; make room in %s"
            )
            logger.warning(told, error.strerror, len(self._rows), self.run_folder)
        if self._mirror is not None:
            self._mirror.check()
        for change in changes:
            self._incidents.record(
                "alarm" if change.since is None else "alarm_over",
                change.message,
                step=change.step,
                alarm=change.alarm.name,
                subject=change.subject,
                value=change.value,
                level=change.level,
            )
        shown = "".join(
            f"{label} {logs[name]:{form}}" for name, (label, form) in _SHOWN.items() if name in logs
        )
        # Steps after the first of this process: that one waited for the server, and warmed up.
        first, since = self._first = self._first or (state.global_step, time.time())
        if (steps := state.global_step - first) and (left := state.max_steps - state.global_step):
            shown += f"  {timedelta(seconds=round((time.time() - since) / steps * left))} left"
        logger.info("step %d/%d%s", state.global_step, state.max_steps, shown or "  no usable game")

    def close(self, *, exit_code: int = 0) -> None:
        """Let the mirror send the last adapters, and close it; also for a run that was stopped."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            mirror.close(exit_code)
