"""Where metrics go: a JSONL file always, a line in the terminal, and W&B beside them when asked for; and the alarms."""

import logging
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hanabi_grpo.dynamics import AlarmWatch, read_history
from hanabi_grpo.incidents import IncidentLog
from hanabi_grpo.resume import TRAINER_STATE
from hanabi_grpo.runs import append_jsonl
from hanabi_grpo.settings import Settings, settings_values

logger = logging.getLogger(__name__)


class TrackingCallback(TrainerCallback):
    """Writes `metrics.jsonl` in the run folder, prints a line per step, mirrors both to W&B, and watches for collapse.

    An alarm that is raised or over is an incident; `alarm/<name>` in each row says which are raised.
    """

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        """Prepare; W&B starts with training."""
        self.settings, self.run_folder = settings, run_folder
        self._wandb: Any = None
        self._watch = AlarmWatch()
        self._incidents = IncidentLog(run_folder)
        self._rows: list[dict[str, Any]] = []
        self._started = time.time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start W&B before the first step, so that a wrong key or project stops the run at once.

        A resumed run's alarms stand as they stood at its checkpoint.
        """
        self._watch = self._watch_so_far(state.global_step)
        if "wandb" not in self.settings.report_to:
            return
        import wandb

        self._wandb = wandb.init(
            project=self.settings.wandb_project,
            entity=self.settings.wandb_entity,
            name=self.settings.wandb_name or self.run_folder.name,
            mode=self.settings.wandb_mode,
            dir=str(self.run_folder),
            config=settings_values(self.settings),
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Write one step's figures."""
        if not logs or "games" not in logs:
            return
        changes = self._watch.update({"step": state.global_step, **logs})
        logs = {**logs, **self._watch.metrics()}
        row = {"step": state.global_step, "seconds": round(time.time() - self._started, 2), **logs}
        self._rows.append(row)
        try:
            while self._rows:
                append_jsonl(self.run_folder / "metrics.jsonl", self._rows[0])
                del self._rows[0]
        except OSError as error:
            logger.warning(
                "metrics.jsonl cannot be written (%s): %d rows are kept and written with the next one; make room in %s",
                error.strerror,
                len(self._rows),
                self.run_folder,
            )
        if self._wandb is not None:
            self._wandb.log(logs, step=state.global_step)
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
        if "score/mean" not in logs:
            logger.info("step %d/%d  no usable game", state.global_step, state.max_steps)
            return
        logger.info(
            "step %d/%d  score %.2f ± %.2f (kept %.2f)  illegal %.2f  hints %.1f  bombs %.0f%%  loss %.4f  grad %.3f  "
            "push %.2f s  rollout %.1f s",
            state.global_step,
            state.max_steps,
            logs["score/mean"],
            logs.get("score/se", float("nan")),
            logs["score_kept/mean"],
            logs["illegal_per_game"],
            logs["hints_per_game"],
            100 * logs["bombs_per_game"],
            logs.get("loss", float("nan")),
            logs.get("grad_norm", float("nan")),
            logs["time/push"],
            logs["time/rollout"],
        )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the newest checkpoint as an artifact when the settings say so."""
        if self._wandb is not None and self.settings.wandb_log_model == "checkpoint":
            self._log_artifact(Path(state.last_model_checkpoint), [f"checkpoint_global_step_{state.global_step}"])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Upload the final adapters and close W&B."""
        self.close(state.last_model_checkpoint)

    def close(self, checkpoint: str | None, *, exit_code: int = 0) -> None:
        """Upload the last checkpoint when the settings say so, and close W&B; also for a run that was stopped."""
        if self._wandb is None:
            return
        wanted = self.settings.upload_ckpt_to_wandb or self.settings.wandb_log_model == "end"
        if wanted and checkpoint:
            self._log_artifact(Path(checkpoint), list(self.settings.ckpt_artifact_aliases))
        self._wandb.finish(exit_code=exit_code)
        self._wandb = None

    def _watch_so_far(self, step: int) -> AlarmWatch:
        try:
            rows = read_history(self.run_folder / "metrics.jsonl")
        except OSError as error:
            logger.warning("metrics.jsonl cannot be read (%s): the alarms start anew", error.strerror)
            rows = []
        watch = AlarmWatch.after(row for row in rows if row["step"] <= step)
        for (name, subject), since in watch.raised.items():
            logger.info("alarm %s%s is raised since step %d", name, f" of {subject}" if subject else "", since)
        return watch

    def _log_artifact(self, checkpoint: Path, aliases: list[str]) -> None:
        import wandb

        name = self.settings.ckpt_artifact_name or f"{self.run_folder.name}-adapters"
        artifact = wandb.Artifact(
            name, type="model", metadata={"model": self.settings.model, "rank": self.settings.lora_rank}
        )
        # Moments and random states are as large again, and nobody but a resume needs them.
        for path in sorted(checkpoint.rglob("*")):
            within = path.relative_to(checkpoint)
            if path.is_file() and within.parts[0] != TRAINER_STATE:
                artifact.add_file(str(path), name=str(within))
        self._wandb.log_artifact(artifact, aliases=aliases)
