"""`metrics.jsonl` of the run folder: one JSON object per step."""

import logging
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.run_folder import append_jsonl
from hanabi_grpo.tracking.monitor import Monitor, StepRow

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"


class FileMonitor(Monitor):
    """Appends each step's row to `metrics.jsonl`; rows wait in memory while the disk is full.

    Rows after the checkpoint of a resumed run are moved aside before training begins, see
    `runs.history.cut_records`.
    """

    name = METRICS

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._rows: list[dict[str, Any]] = []
        """Not written yet, oldest first."""

    def log(self, row: StepRow) -> None:
        """Write the row, and before it those that could not be written."""
        self._rows.append(row.as_json())
        try:
            self._write_rows()
        except OSError as error:
            logger.warning(
                "metrics.jsonl cannot be written (%s): %d rows are kept in memory and written with "
                "the next one; free space in %s",
                error.strerror,
                len(self._rows),
                self._run_folder,
            )

    def finish(self, exit_code: int) -> None:
        """Write what is left. Raises an OSError."""
        self._write_rows()

    def _write_rows(self) -> None:
        while self._rows:
            row = self._rows.pop(0)
            try:
                append_jsonl(self._run_folder / METRICS, row)
            except OSError:
                # Kept for the next attempt; a row that is no JSON is not, or none would follow it.
                self._rows.insert(0, row)
                raise
