"""TensorBoard's event files in `RUN/tensorboard`, with REPORT_TO=tensorboard.

`tensorboard --logdir outputs` then shows the curves of every run.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.history import number
from hanabi_grpo.tracking.monitor import Monitor, StepRow

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Folder of the event files in the run folder."""


class TensorBoardMonitor(Monitor):
    """Writes every finite figure of a step as a scalar.

    The files are flushed after each step, so that a killed run loses no steps.
    """

    name = "TensorBoard"

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER
        self._writer: SummaryWriter | None = None

    def start(self, step: int) -> None:
        """Open an event file.

        A resumed run writes into a new file, which tells TensorBoard to forget the steps after the
        checkpoint.

        Args:
            step: Number of steps already done.

        Raises:
            SettingsError: The package is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SettingsError(
                f"REPORT_TO=tensorboard: the package tensorboard cannot be imported ({error}). "
                "Install it in this environment (bash tools/setup.sh does), or remove tensorboard "
                "from REPORT_TO."
            ) from error
        self._writer = SummaryWriter(log_dir=str(self._folder), purge_step=step + 1)

    def log(self, row: StepRow) -> None:
        """Write the figures of one step, except those that are absent or not finite numbers."""
        if self._writer is None:
            return
        for name, value in row.metrics.items():
            scalar = number(value)
            if scalar is not None:
                self._writer.add_scalar(name, scalar, row.step)
        self._writer.flush()

    def finish(self, exit_code: int) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
