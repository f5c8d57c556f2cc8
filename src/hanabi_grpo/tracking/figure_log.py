"""REPORT_TO for commands that play without training: TensorBoard and W&B besides their own output.

The folder has the files of a run folder: `settings.json`, `metrics.jsonl`, `tensorboard/`,
`wandb/`. The monitors are those of training and behave in the same way.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from hanabi_grpo.runs.history import read_history
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings import LoadedSettings
from hanabi_grpo.settings.show import settings_json
from hanabi_grpo.tracking.file_monitor import METRICS, FileMonitor
from hanabi_grpo.tracking.monitor import Monitor, MonitorGroup, StepRow
from hanabi_grpo.tracking.tensorboard_monitor import TensorBoardMonitor
from hanabi_grpo.tracking.wandb_monitor import WandbMonitor


class FigureLog:
    """Logs the figures of one command by its progress; logs nothing with REPORT_TO=none.

    Example:
        with FigureLog(loaded, Path("games/figures"), name="games", last_step=100) as log:
            log.add(50, {"games": 50.0, "score/mean": 2.5})
    """

    def __init__(self, loaded: LoadedSettings, folder: Path, *, name: str, last_step: int) -> None:
        """Prepare the log; nothing is written before the `with` block is entered.

        Args:
            loaded: The command's settings.
            folder: Folder of the records; continued if it exists.
            name: Name of the run at W&B if WANDB_NAME is unset.
            last_step: The number at which the command is done.
        """
        settings = loaded.settings
        self.is_on = "tensorboard" in settings.report_to or (
            "wandb" in settings.report_to and settings.wandb_mode != "disabled"
        )
        """Whether anything is recorded."""
        self.folder = folder
        self._loaded = loaded
        self._name = name
        self._last_step = last_step
        self._monitors = MonitorGroup([])
        self._num_earlier = 0
        """The last number that earlier calls with the same folder recorded."""
        self._offset: int | None = None
        """Added to every number; None: not known before the first."""
        self._started = time.time()

    def __enter__(self) -> Self:
        """Start the monitors.

        Raises:
            SettingsError: A monitor is misconfigured.
        """
        if not self.is_on:
            return self
        settings = self._loaded.settings
        self.folder.mkdir(parents=True, exist_ok=True)
        document = settings_json(self._loaded)
        if settings.wandb_name is None:
            document["settings"]["WANDB_NAME"] = self._name
        write_json_atomic(self.folder / "settings.json", document)
        # The file comes first, because W&B's mirror reads it.
        monitors: list[Monitor] = [FileMonitor(self.folder)]
        if "tensorboard" in settings.report_to:
            monitors.append(TensorBoardMonitor(self.folder))
        if "wandb" in settings.report_to and settings.wandb_mode != "disabled":
            monitors.append(WandbMonitor(self.folder))
        rows = read_history(self.folder / METRICS)
        self._num_earlier = max((row["step"] for row in rows), default=0)
        self._monitors = MonitorGroup(monitors)
        self._monitors.start(self._num_earlier)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the monitors, including those of a command that was stopped."""
        self._monitors.finish(exit_code=0 if error is None else 1)

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Record figures.

        A command that continues an earlier one goes on counting. One that begins anew in the same
        folder is recorded behind it, because the monitors take no number twice.

        Args:
            step: Progress so far, e.g. the number of tasks.
            figures: Figures by name; `games` is the number of games that they cover.
        """
        if self._offset is None:
            self._offset = self._num_earlier if step <= self._num_earlier else 0
        self._monitors.log(
            StepRow(
                step=self._offset + step,
                max_steps=self._offset + self._last_step,
                seconds=time.time() - self._started,
                metrics=figures,
            )
        )
