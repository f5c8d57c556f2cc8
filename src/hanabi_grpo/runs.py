"""The run folder: its name, that it is fresh, and how files are written into it."""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.settings import Settings


def run_folder_name(settings: Settings, now: datetime) -> str:
    """Return the name of a run that was given no OUTPUT_DIR, e.g. "laptop-20260131-093000"."""
    return f"{settings.preset or Path(settings.dataset).stem}-{now:%Y%m%d-%H%M%S}"


def prepare_run_folder(settings: Settings, now: datetime | None = None) -> Path:
    """Create the run folder and return it.

    A folder that holds nothing but `*.log` files counts as fresh: a script that starts both processes
    points the server's log there before training begins.

    Args:
        settings: OUTPUT_DIR from here; unset: a new folder in `outputs/`.
        now: For the name of a new folder; None: this moment.

    Raises:
        RunFolderError: The folder is in use, is a file, or cannot be created.
    """
    folder = settings.output_dir or Path("outputs") / run_folder_name(settings, now or datetime.now())
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"OUTPUT_DIR={str(folder)!r}: is a file; choose a folder that does not exist yet.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = sorted(entry.name for entry in folder.iterdir() if entry.suffix != ".log")
    except OSError as error:
        raise RunFolderError(f"OUTPUT_DIR={str(folder)!r}: cannot be used ({error.strerror}).") from error
    if used:
        raise RunFolderError(
            f"OUTPUT_DIR={str(folder)!r}: holds another run already ({', '.join(used[:3])}"
            f"{', …' if len(used) > 3 else ''}). Choose another OUTPUT_DIR, unset it for a new folder in outputs/, "
            f"or remove this one: rm -r {folder}"
        )
    return folder


def write_json_atomic(path: Path, data: Any) -> None:
    """Write a JSON file so that a reader, or a crash, sees the old file or the whole new one.

    Non-finite numbers become null: JSON has no name for them.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            json.dump(_finite(data), file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def append_jsonl(path: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to a JSON Lines file by one write each; non-finite numbers become null."""
    with path.open("ab", buffering=0) as file:
        for row in rows:
            file.write((json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n").encode())


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
