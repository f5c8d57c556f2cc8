"""What a file of results holds, so that no command replaces it unnoticed."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.exploit_results import BOUNDS, PROFILES
from hanabi_grpo.files import MAX_EVALUATION_BYTES, read_bytes
from hanabi_grpo.runs.evaluation_result import is_result
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


def check_replaceable(path: Path) -> None:
    """Refuse an --out file that exists and holds anything but results.

    Raises:
        SettingsError: It does. An empty file is no obstacle.
    """
    if path.is_file() and path.stat().st_size > 0 and held_result(path) is None:
        raise SettingsError(
            f"--out {path}: exists, but holds no result of evaluate, exploit, teams or beliefs; "
            "name another file, or move this one away."
        )


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
