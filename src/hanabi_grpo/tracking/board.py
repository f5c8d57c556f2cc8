"""TensorBoard: the rows of `metrics.jsonl` as scalars, under W&B's names."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.tracking.sections import sectioned

logger = logging.getLogger(__name__)

FOLDER = "tensorboard"


class Board:
    """Writes `tensorboard/` of a run folder; a disk that is full is said once and stops nothing."""

    def __init__(self, run_folder: Path, step: int) -> None:
        """Start after a step: of a resumed run, later points of an earlier process are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(run_folder / FOLDER), purge_step=step + 1 if step else None)
        self._silent = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one row: every finite number of it, against its step."""
        try:
            for name, value in sectioned(row).items():
                if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                    self._writer.add_scalar(name, value, row["step"])
            self._writer.flush()
        except OSError as error:
            self._say(error)

    def close(self) -> None:
        """Write what is left."""
        try:
            self._writer.close()
        except OSError as error:
            self._say(error)

    def _say(self, error: OSError) -> None:
        if not self._silent:
            logger.warning("TensorBoard's files cannot be written (%s); metrics.jsonl has every row", error.strerror)
        self._silent = True
