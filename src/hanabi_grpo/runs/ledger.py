"""Finished pieces of a long piece of work, in a file, so that an interrupted command goes on where
it stopped.

The first line says which work it is (the key), every other line is a finished piece. A command with
another key never gets to see them, and only one process at a time holds the file."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.run_folder import append_jsonl, open_locked


def key_digest(key: Mapping[str, Any]) -> str:
    """Return a short name of a key, for a file's name."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]


class Ledger:
    """One file of finished pieces, held by this process until it is closed."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        """Open a ledger, or begin one; a last line that was cut off is dropped.

        `key` is everything that the pieces depend on. A SettingsError where the file is of other
        work, damaged, held by another process, or cannot be used."""
        self.path = path
        self.rows: list[dict[str, Any]] = []
        """The finished pieces, oldest first."""
        wanted: dict[str, Any] = json.loads(json.dumps(key))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_locked(path)
            try:
                self._read(wanted)
            except BaseException:
                self._file.close()
                raise
        except BlockingIOError as error:
            raise SettingsError(
                f"{path}: another process is at this work; wait for it, or choose another --out."
            ) from error
        except OSError as error:
            raise SettingsError(
                f"{path}: cannot be used ({error.strerror}); choose another --out."
            ) from error

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Write finished pieces; they are in the file when this returns. A SettingsError where that
        is impossible.
        """
        try:
            append_jsonl(self.path, *rows)
        except OSError as error:
            raise SettingsError(
                f"{self.path}: cannot be written ({error.strerror}); what it holds is whole."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self, key: dict[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
            found = rows[0]["key"] if rows else key
        except (ValueError, LookupError, TypeError):
            rows, found = [None], None
        if not isinstance(found, dict) or not all(isinstance(row, dict) for row in rows):
            raise SettingsError(
                f"{self.path}: not what an interrupted command leaves; move it away."
            )
        if found != key:
            other = [
                f"{name}: there {str(found.get(name))[:60]}, here {str(key.get(name))[:60]}"
                for name in sorted({*found, *key})
                if found.get(name) != key.get(name)
            ]
            raise SettingsError(
                f"{self.path}: holds the finished part of other work ({'; '.join(other)}). Finish "
                "that with its own "
                "command, choose another --out, or remove the file."
            )
        self.rows = rows[1:]
        if not rows:
            self.add({"key": key})
