"""The records of a run: rows of `metrics.jsonl`, incidents, and what is moved aside when steps are
taken again.
"""

import itertools
import json
import logging
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.run_folder import append_jsonl, write_text_atomic

logger = logging.getLogger(__name__)


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of steps, oldest first, none where the file is missing; of a step that is
    there twice, the last.

    A run that is being written, or was killed, may end with a torn line: lines that are no row are
    left out."""
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
    return (
        row if isinstance(row, dict) and type(row.get("step")) is int and "games" in row else None
    )


def number(value: object) -> float | None:
    """Return a figure of a row; None for what is absent, no number, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


class IncidentLog:
    """Appends what went wrong without ending a run to its `incidents.jsonl`, warns in the log, and
    counts by kind.
    """

    def __init__(self, run_folder: Path) -> None:
        """Prepare; the file appears with the first incident."""
        self.path = run_folder / "incidents.jsonl"
        self.counts: Counter[str] = Counter()

    def record(self, kind: str, message: str, **details: object) -> None:
        """Write one incident: a short stable word, e.g. "server_gone", a sentence, and facts, e.g.
        step=12.
        """
        self.counts[kind] += 1
        logger.warning("%s: %s", kind, message)
        row = {"time": round(time.time(), 3), "kind": kind, "message": message, **details}
        try:
            append_jsonl(self.path, row)
        except OSError as error:
            # A full disk is itself an incident; it must not end a run that the incident did not
            # end.
            logger.warning("incidents.jsonl cannot be written (%s): %s", error.strerror, row)


def cut_records(run_folder: Path, step: int) -> tuple[int, int]:
    """Move aside what was recorded after the checkpoint of `step`; a kill at any moment loses
    nothing.

    `metrics.jsonl` has a row at the end of each step, so rows above `step` go to
    `metrics.discarded.jsonl`, and lines that are no JSON (a torn last one). `episodes/step_M.jsonl`
    holds the games behind step M + 1, so files from M = `step` go to `episodes/discarded/`. Returns
    how many lines and how many files were moved."""
    return _cut_metrics(run_folder, step), _move_episodes(run_folder / "episodes", step)


def _cut_metrics(run_folder: Path, step: int) -> int:
    path = run_folder / "metrics.jsonl"
    if not path.exists():
        return 0
    data = path.read_bytes()
    lines = data.splitlines()
    late = [line for line in lines if line and _is_late(line, step)]
    if not late and (not data or data.endswith(b"\n")):
        return 0
    if late:
        _append_once(
            run_folder / "metrics.discarded.jsonl", b"".join(line + b"\n" for line in late)
        )
    kept = b"".join(line + b"\n" for line in lines if line and not _is_late(line, step))
    write_text_atomic(path, kept)
    return len(late)


def _is_late(line: bytes, step: int) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return True
    return not isinstance(row, dict) or (isinstance(row.get("step"), int) and row["step"] > step)


def _append_once(path: Path, block: bytes) -> None:
    # A process killed between this and the shorter metrics.jsonl comes here again with the same
    # lines.
    with path.open("a+b") as file:
        file.seek(0)
        before = file.read()
        if before.endswith(block):
            return
        if before and not before.endswith(b"\n"):
            block = b"\n" + block
        file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _move_episodes(folder: Path, step: int) -> int:
    discarded = folder / "discarded"
    numbers = (
        (path, path.stem.removeprefix("step_")) for path in sorted(folder.glob("step_*.jsonl"))
    )
    late = [path for path, number in numbers if number.isdecimal() and int(number) >= step]
    for path in late:
        discarded.mkdir(exist_ok=True)
        names = itertools.chain(
            [path.name], (f"{path.stem}.{copy}.jsonl" for copy in itertools.count(1))
        )
        os.rename(path, next(discarded / name for name in names if not (discarded / name).exists()))
    return len(late)
