"""W&B, with REPORT_TO=wandb: a separate process mirrors the run folder, see `mirror`."""

import logging
from pathlib import Path

from hanabi_grpo.tracking.mirror import Mirror
from hanabi_grpo.tracking.monitor import Monitor, StepRow

logger = logging.getLogger(__name__)


class WandbMonitor(Monitor):
    """Starts the mirror before the first step, and lets it send the rest after the last step.

    The mirror reads the rows from `metrics.jsonl`.
    """

    name = "W&B"

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._mirror: Mirror | None = None

    def start(self, step: int) -> None:
        """Start the mirror; W&B already has the rows up to `step`.

        Raises:
            SettingsError: W&B refuses the key, the entity or the project.
        """
        try:
            self._mirror = Mirror(self._run_folder, step)
        except OSError as error:
            logger.warning("W&B: the mirror cannot be started (%s); training continues", error)

    def log(self, row: StepRow) -> None:
        """Log new messages of the mirror, without waiting."""
        if self._mirror is not None:
            self._mirror.check()

    def finish(self, exit_code: int) -> None:
        """Let the mirror send the last adapters, and close it, even if the run was stopped."""
        mirror = self._mirror
        self._mirror = None
        if mirror is not None:
            mirror.close(exit_code)
