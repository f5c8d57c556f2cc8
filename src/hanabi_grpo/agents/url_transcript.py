"""The record of all calls to the models behind URLs: one JSON line per call."""

import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.files import read_bytes
from hanabi_grpo.runs.run_folder import append_jsonl

logger = logging.getLogger(__name__)

MAX_TRANSCRIPT = 64 << 20
"""Bytes after which a transcript is renamed to NAME.old.jsonl, replacing an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Tokens of prompts and replies so far."""

    total: int = 0
    by_guests: int = 0
    """Tokens of requests that were not the session's trainer's."""


class Transcript:
    """A JSONL file of calls; each line has the tokens spent so far.

    A server process that replaces a dead one continues the count from the last line.
    """

    def __init__(self, path: Path | None) -> None:
        """Use a file that may not exist yet; None: record nothing."""
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line; failing to write it does not end the game."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            size = self.path.stat().st_size if self.path.exists() else 0
            if size > MAX_TRANSCRIPT:
                self.path.replace(self._old_path(self.path))
            append_jsonl(self.path, row)
        except OSError as error:
            logger.warning("%s cannot be written (%s)", self.path, error.strerror)

    def spent(self) -> Spent:
        """Return the tokens spent according to the last complete line; 0 if there is none."""
        if self.path is None:
            return Spent()
        for path in (self.path, self._old_path(self.path)):
            with contextlib.suppress(OSError):
                for line in reversed(read_bytes(path, 2 * MAX_TRANSCRIPT).splitlines()):
                    # The last line is cut off if its writer was killed.
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        row = json.loads(line)
                        return Spent(total=int(row["spent"]), by_guests=int(row["guests_spent"]))
        return Spent()

    @staticmethod
    def _old_path(path: Path) -> Path:
        return path.with_suffix(".old.jsonl")
