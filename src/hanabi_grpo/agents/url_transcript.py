"""The record of all calls to the models behind URLs: one JSON line per call."""

import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.run_folder import append_jsonl

logger = logging.getLogger(__name__)

MAX_TRANSCRIPT = 64 << 20
"""Bytes after which a transcript becomes NAME.old.jsonl, in place of the old one before it."""


class Transcript:
    """A JSONL file of calls, each line with the tokens spent until then.

    A server process that takes the place of a dead one counts on from there.
    """

    def __init__(self, path: Path | None) -> None:
        """Use a file that may not exist yet; None: record nothing."""
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one line; a line that cannot be written ends no game."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size > MAX_TRANSCRIPT:
                self.path.replace(self._old_path(self.path))
            append_jsonl(self.path, row)
        except OSError as error:
            logger.warning("%s cannot be written (%s)", self.path, error.strerror)

    def spent(self) -> int:
        """Return the tokens spent as the last whole line says; 0 without one."""
        if self.path is None:
            return 0
        for path in (self.path, self._old_path(self.path)):
            with contextlib.suppress(OSError):
                for line in reversed(path.read_bytes().splitlines()):
                    # The last line is cut off where its writer was killed.
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        return int(json.loads(line)["spent"])
        return 0

    @staticmethod
    def _old_path(path: Path) -> Path:
        return path.with_suffix(".old.jsonl")
