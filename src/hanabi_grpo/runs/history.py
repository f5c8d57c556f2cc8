"""The rows of a run's `metrics.jsonl`."""

import json
import math
from pathlib import Path
from typing import Any


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of steps, oldest first; of a step that is there twice, the last.

    A run that is being written, or was killed, may end with a torn line: lines that are no row are left out.

    Raises:
        OSError: The file cannot be read; a missing one is no error and has no rows.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows: dict[int, dict[str, Any]] = {}
    for row in map(read_row, lines):
        if row is not None:
            rows[row["step"]] = row
    return [rows[step] for step in sorted(rows)]


def read_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a step; None for any other line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int and "games" in row else None


def number(value: object) -> float | None:
    """Return a figure of a row; None for what is absent, no number, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
