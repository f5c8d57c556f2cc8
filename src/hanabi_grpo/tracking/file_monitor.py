"""`metrics.jsonl` of the run folder: one JSON object per step."""

import logging
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.run_folder import append_jsonl
from hanabi_grpo.tracking.monitor import Monitor, StepRow

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"


class FileMonitor(Monitor):
    """Appends each step's row to `metrics.jsonl`; keeps rows in memory while the disk is full.

    When a run is resumed, rows after the checkpoint are moved aside before training begins, see
    `runs.history.cut_records`.
    """

    name = METRICS

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._rows: list[dict[str, Any]] = []
        """Rows that are not written yet, oldest first."""

    def log(self, row: StepRow) -> None:
        """Write the row, after those that could not be written before."""
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
        """Write the remaining rows; raises an OSError."""
        self._write_rows()

    def _write_rows(self) -> None:
        while self._rows:
            row = self._rows.pop(0)
            try:
                append_jsonl(self._run_folder / METRICS, row)
            except OSError:
                # Kept for the next attempt. A row that is not valid JSON is dropped, because it
                # would block all later rows.
                self._rows.insert(0, row)
                raise
