"""What a file of results holds, so that no command replaces it unnoticed."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.exploit_results import BOUNDS, PROFILES
from hanabi_grpo.files import MAX_EVALUATION_BYTES, read_bytes
from hanabi_grpo.runs.evaluation_result import is_result, write_document
from hanabi_grpo.runs.old_keys import rename_old_keys
from hanabi_grpo.texts import visible_line

BELIEFS = "beliefs"
"""Key of the lineups in a document of `hanabi-grpo beliefs`."""
_COMMANDS = {PROFILES: "exploit", BOUNDS: "exploit --learned", BELIEFS: "beliefs"}
"""Command that writes a document with a key, under which its lineups are."""
_RESULTS = "results"
"""Key of the lineups in a document of `hanabi-grpo teams`, or of several ones of `evaluate`."""
_CANDIDATES = "candidates"
"""Key of what is evaluated in a document of `hanabi-grpo adhoc`."""
_ENTRIES = "entries"
"""Key of the rows and columns in a document of `hanabi-grpo cross-play`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldResult:
    """What one document of results is about; equal for the same lineups, game and suite."""

    command: str
    """The command that writes such documents, e.g. "evaluate"."""
    lineups: tuple[str, ...]
    """The lineups as they were typed."""
    game: str
    """Preset and hash of the rules, or name of the problems."""
    suite: str
    """Suite of the tasks; "": the document does not name it."""

    @property
    def facts(self) -> str:
        """All but the lineups, e.g. "evaluate, laptop 6d2c920b5b32, suite eval"."""
        suite = f"suite {self.suite}" if self.suite else ""
        return ", ".join(filter(None, (self.command, self.game, suite)))


def describe_result(document: object) -> HeldResult | None:
    """Return what a JSON document is about; None if no command writes such results."""
    if not isinstance(document, dict):
        return None
    if is_result(document):
        return _held("evaluate", [document], document)
    for key, command in _COMMANDS.items():
        if isinstance(document.get(key), dict):
            rows = [{"lineup": lineup} for lineup in document[key]]
            return _held(command, rows, document)
    candidates = _rows(document, _CANDIDATES)
    if "partners" in document and candidates is not None:
        rows = [{"lineup": row.get("word")} for row in candidates]
        return _held("adhoc", rows, document)
    entries = _rows(document, _ENTRIES)
    if "num_pairs" in document and entries is not None:
        rows = [{"lineup": row.get("word")} for row in entries]
        return _held("cross-play", rows, document)
    results = _rows(document, _RESULTS)
    if not results:
        return None
    if all(map(is_result, results)):
        return _held("evaluate", results, results[0])
    return _held("teams", results, document) if "workflow" in results[0] else None


def _rows(document: Mapping[str, Any], key: str) -> list[dict[str, Any]] | None:
    """Return the objects in a list of a document; None if there is no list of objects."""
    rows = document.get(key)
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return rows
    return None


def _held(command: str, rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> HeldResult:
    """Return what a document is about.

    Args:
        command: The command that writes such documents.
        rows: An object for each lineup.
        about: The object that names game and suite.
    """
    lineups = []
    for row in rows:
        lineup = str(rename_old_keys(row).get("lineup"))
        lineups.append(f"{row['workflow']}={lineup}" if "workflow" in row else lineup)
    config = about.get("env_config")
    preset = config.get("preset") if isinstance(config, dict) else None
    game = (preset, about.get("spec_hash"), about.get("problems"))
    return HeldResult(
        command=command,
        lineups=tuple(lineups),
        game=" ".join(str(name) for name in game if name),
        suite=str(about.get("suite") or ""),
    )


def held_result(path: Path) -> HeldResult | None:
    """Return what an existing file of results holds; None without such a file."""
    try:
        return describe_result(json.loads(read_bytes(path, MAX_EVALUATION_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None


def check_out(out: Path | None, option: str = "--out ") -> None:
    """Refuse a file of results that cannot or must not be written, before any game is played.

    Args:
        out: The file; None: no file. An empty file is no obstacle.
        option: How messages begin, before the path.

    Raises:
        SettingsError: It is a folder, its folder is not writable, or it holds anything but a
            result.
    """
    if out is None:
        return
    if out.is_dir():
        raise SettingsError(
            f"{option}{out}: is a folder; name a file, e.g. {option}{out / 'result.json'}."
        )
    # Missing folders are created later.
    folder = out.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"{option}{out}: {folder} is not writable; name another file.")
    if out.is_file() and out.stat().st_size > 0 and held_result(out) is None:
        raise SettingsError(
            f"{option}{out}: exists, but holds no result of evaluate, exploit, teams or beliefs; "
            "name another file, or move this one away."
        )


def write_result(path: Path, document: Mapping[str, Any]) -> str:
    """Write a file of results and return `replaced_note`."""
    before = held_result(path)
    write_document(path, document)
    return replaced_note(path, before, document)


def replaced_note(path: Path, before: HeldResult | None, document: object) -> str:
    """Return what was replaced by a result of other lineups, another game or suite; or "".

    Args:
        path: The file.
        before: What it held before; None: nothing.
        document: What it holds now.
    """
    after = describe_result(document)
    if before is None or before == after:
        return ""
    held = ", ".join(before.lineups) or "no lineup"
    if after is None or before.facts != after.facts:
        held = f"{held} ({before.facts})"
    return visible_line(f"replaced {path}, which held {held}")
