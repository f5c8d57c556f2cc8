"""The manifest of a tiny model's folder: the recipe that made it, and the sha256 of its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.defaults import TINY_MODEL

MANIFEST = "tiny_model.json"
CARD = "README.md"
"""The one file that may change: nothing is computed from it."""


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Record `facts` and the sha256 of every file that is in the folder now, the card's apart."""
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.name not in (MANIFEST, CARD)}
    write_json_atomic(folder / MANIFEST, {**facts, "files": files})


def damage_of(folder: Path) -> str | None:
    """Return what is wrong with a tiny model's files; None when nothing is, or when the folder has no manifest."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        files = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (found := file_sha256(path)) != digest:
            return f"{name} is not the file that was written (sha256 {found[:12]}…, {MANIFEST} says {digest[:12]}…)"
    return None


def way_back(folder: Path, make: str) -> str:
    """Return the command that gives a tiny model's folder its files back; `make` makes a tiny model of its presets."""
    if folder.resolve() == Path(TINY_MODEL).resolve():
        return f"git checkout -- {TINY_MODEL}"
    return f"{make} --out {folder} --force"
