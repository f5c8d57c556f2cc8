"""A file of finished pieces of a long job, from which an interrupted command continues.

The first line identifies the job (the key), every other line is a finished piece. A command with a
different key cannot use them, and only one process at a time may open the file.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_PIECES_BYTES, read_bytes
from hanabi_grpo.runs.old_keys import rename_old_keys
from hanabi_grpo.runs.run_folder import append_jsonl, open_locked

_DIGEST_LENGTH = 12
"""Hexadecimal digits of a key's short name."""
_SHOWN_LENGTH = 60
"""Characters of a value in an error message."""


def key_digest(key: Mapping[str, Any]) -> str:
    """Return a short name of a key, for a file's name: 12 hexadecimal digits."""
    content = json.dumps(key, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return digest[:_DIGEST_LENGTH]


class Ledger:
    """One file of finished pieces, held by this process until it is closed.

    Example:
        with Ledger(Path("work.part.jsonl"), {"lineup": "iggi"}) as ledger:
            done = {row["seed"] for row in ledger.rows}
            ledger.add({"seed": 7, "scores": [3.0]})
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        """Open a ledger, or begin one; a last line that was cut off is dropped.

        Args:
            path: The file; its folder is created if it is missing.
            key: Everything that the pieces depend on, as JSON data.

        Raises:
            SettingsError: The file belongs to another job, is damaged, is held by another process,
                or cannot be used.
        """
        self.path = path
        self.rows: list[dict[str, Any]] = []
        """The finished pieces, oldest first."""
        # As JSON reads it back: tuples become lists.
        expected_key: dict[str, Any] = json.loads(json.dumps(key))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_locked(path)
            try:
                self._read(expected_key)
            except BaseException:
                self._file.close()
                raise
        except BlockingIOError as error:
            raise SettingsError(
                f"{path}: another process is writing to it; wait for it, or choose another --out."
            ) from error
        except OSError as error:
            raise SettingsError(
                f"{path}: cannot be used ({error.strerror}); choose another --out."
            ) from error

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Write finished pieces; they are in the file when this returns.

        Raises:
            SettingsError: The file cannot be written.
        """
        try:
            append_jsonl(self.path, *rows)
        except OSError as error:
            raise SettingsError(
                f"{self.path}: cannot be written ({error.strerror}); its content is intact."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self, key: dict[str, Any]) -> None:
        """Read the rows, drop a torn last line, and write the key into a new file."""
        content = read_bytes(self.path, MAX_PIECES_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        if whole:
            stored_key, rows = self._parse(whole)
            if stored_key == key:
                self.rows = rows
                return
            if rows:
                raise SettingsError(
                    f"{self.path}: holds the finished part of a different job "
                    f"({_describe_difference(stored_key, key)}). Finish that with its own command, "
                    "choose another --out, or remove the file."
                )
            # That job was stopped before its first piece: nothing is lost.
            os.truncate(self.path, 0)
        self.add({"key": key})

    def _parse(self, content: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the key and the rows of a file; a SettingsError if it is not a ledger."""
        damaged = SettingsError(f"{self.path}: not a file of an interrupted command; move it away.")
        try:
            lines = [json.loads(line) for line in content.splitlines()]
            stored_key = lines[0]["key"]
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            raise damaged from error
        if not isinstance(stored_key, dict):
            raise damaged
        if not all(isinstance(line, dict) for line in lines):
            raise damaged
        rows = [rename_old_keys(line) for line in lines[1:]]
        return rename_old_keys(stored_key), rows


def _describe_difference(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return the fields of two keys that differ, e.g. "temperature: there 1.0, here 0.5"."""
    differences = []
    for name in sorted({*stored, *expected}):
        there = stored.get(name)
        here = expected.get(name)
        if there != here:
            differences.append(
                f"{name}: there {str(there)[:_SHOWN_LENGTH]}, here {str(here)[:_SHOWN_LENGTH]}"
            )
    return "; ".join(differences)
