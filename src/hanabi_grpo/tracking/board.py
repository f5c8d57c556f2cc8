"""TensorBoard: the rows of `metrics.jsonl` as scalars; their names there and at W&B, which have a section each."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FOLDER = "tensorboard"
_OWN = {"seconds": "time/elapsed", "step_time": "time/step"}
_PLAY = ("games", "groups", "flat_group", "hint_")


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


def section_name(name: str) -> str:
    """Return a metric's name with its section: `player_0/…`, `time/…` and the like stay as they are.

    Example:
        section_name("illegal_per_game") == "play/illegal_per_game"
        section_name("loss") == "train/loss"
    """
    if "/" in name or name == "step":
        return name
    if name in _OWN:
        return _OWN[name]
    section = "play" if name.endswith("_per_game") or name.startswith(_PLAY) else "train"
    return f"{section}/{name}"


def sectioned(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `metrics.jsonl` under those names; figures that are null are left out."""
    return {section_name(name): value for name, value in row.items() if value is not None}
