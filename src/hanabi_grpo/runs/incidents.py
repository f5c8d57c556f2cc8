"""What went wrong in a run without ending it, one line each: dropped games, lost servers, failed saves."""

import logging
import time
from collections import Counter
from pathlib import Path

from hanabi_grpo.runs.run_folder import append_jsonl

logger = logging.getLogger(__name__)


class IncidentLog:
    """Appends to `incidents.jsonl` of a run folder, warns in the log, and counts by kind."""

    def __init__(self, run_folder: Path) -> None:
        """Prepare; the file appears with the first incident."""
        self.path = run_folder / "incidents.jsonl"
        self.counts: Counter[str] = Counter()

    def record(self, kind: str, message: str, **details: object) -> None:
        """Write one incident.

        Args:
            kind: A short stable word, e.g. "server_gone"; counted.
            message: A sentence for people.
            details: JSON-able facts, e.g. step=12.
        """
        self.counts[kind] += 1
        logger.warning("%s: %s", kind, message)
        row = {"time": round(time.time(), 3), "kind": kind, "message": message, **details}
        try:
            append_jsonl(self.path, row)
        except OSError as error:
            # A full disk is itself an incident; it must not end a run that the incident did not end.
            logger.warning("incidents.jsonl cannot be written (%s): %s", error.strerror, row)
