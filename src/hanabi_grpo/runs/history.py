"""Records of a run: rows of `metrics.jsonl`, incidents, and records that a resume moves aside."""

import itertools
import json
import logging
import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.run_folder import append_jsonl, write_text_atomic

logger = logging.getLogger(__name__)

_METRICS = "metrics.jsonl"
_DISCARDED_METRICS = "metrics.discarded.jsonl"
_INCIDENTS = "incidents.jsonl"


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of steps, oldest first; an empty list where the file is missing.

    Where a step has two rows, the last one counts. The file of a run that is going on, or was
    killed, may end with a torn line: lines that are not the row of a step are left out.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows: dict[int, dict[str, Any]] = {}
    for line in lines:
        row = read_row(line)
        if row is not None:
            rows[row["step"]] = row
    return [rows[step] for step in sorted(rows)]


def read_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a step; None for any other line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    # A bool is an int as well.
    is_step = type(row.get("step")) is int and "games" in row
    return row if is_step else None


def number(value: object) -> float | None:
    """Return a value of a row as a float; None where it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


class IncidentLog:
    """Records problems that do not end a run, in `incidents.jsonl` and in the log."""

    def __init__(self, run_folder: Path) -> None:
        """Prepare; the file appears with the first incident."""
        self.path = run_folder / _INCIDENTS
        self.counts: Counter[str] = Counter()
        """Incidents by kind."""

    def record(self, kind: str, message: str, **details: object) -> None:
        """Write one incident.

        Args:
            kind: A short stable name, e.g. "server_gone".
            message: A sentence.
            **details: Facts, e.g. step=12.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitLines:
    """The lines of `metrics.jsonl` before and after a checkpoint."""

    kept: list[bytes]
    discarded: list[bytes]


def cut_records(run_folder: Path, step: int) -> tuple[int, int]:
    """Move aside records from after the checkpoint of `step`; a kill at any time is safe.

    `metrics.jsonl` has a row at the end of each step, so rows above `step` go to
    `metrics.discarded.jsonl`, and so do lines that are not JSON (a torn last line).
    `episodes/step_M.jsonl` holds the games of step M + 1, so files from M = `step` on go to
    `episodes/discarded/`.

    Returns:
        The number of lines and the number of files that were moved.
    """
    num_lines = _cut_metrics(run_folder, step)
    num_files = _move_episodes(run_folder / "episodes", step)
    return num_lines, num_files


def _cut_metrics(run_folder: Path, step: int) -> int:
    """Move the late lines of `metrics.jsonl` aside and return how many there were."""
    path = run_folder / _METRICS
    if not path.exists():
        return 0
    content = path.read_bytes()
    lines = _split_lines(content, step)
    ends_whole = not content or content.endswith(b"\n")
    if not lines.discarded and ends_whole:
        return 0
    if lines.discarded:
        _append_once(run_folder / _DISCARDED_METRICS, _joined(lines.discarded))
    write_text_atomic(path, _joined(lines.kept))
    return len(lines.discarded)


def _split_lines(content: bytes, step: int) -> _SplitLines:
    kept = []
    discarded = []
    for line in content.splitlines():
        if not line:
            continue
        if _is_late(line, step):
            discarded.append(line)
        else:
            kept.append(line)
    return _SplitLines(kept=kept, discarded=discarded)


def _joined(lines: list[bytes]) -> bytes:
    content = b"\n".join(lines)
    return content + b"\n" if lines else b""


def _is_late(line: bytes, step: int) -> bool:
    """Tell whether a line was written after `step`, or is not a row."""
    try:
        row = json.loads(line)
    except ValueError:
        return True
    if not isinstance(row, dict):
        return True
    row_step = row.get("step")
    return isinstance(row_step, int) and row_step > step


def _append_once(path: Path, block: bytes) -> None:
    """Append a block unless the file ends with it.

    A process that was killed between this and the write of the shorter metrics.jsonl appends the
    same lines again when it is resumed.
    """
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
    """Move the files of late episodes aside and return how many there were."""
    discarded = folder / "discarded"
    num_moved = 0
    for path in sorted(folder.glob("step_*.jsonl")):
        digits = path.stem.removeprefix("step_")
        if not digits.isdecimal() or int(digits) < step:
            continue
        discarded.mkdir(exist_ok=True)
        os.rename(path, _free_path(discarded, path))
        num_moved += 1
    return num_moved


def _free_path(folder: Path, path: Path) -> Path:
    """Return a path for a file in a folder that does not exist yet.

    Example:
        "step_7.jsonl", and "step_7.1.jsonl" where the folder has a "step_7.jsonl" already.
    """
    target = folder / path.name
    for copy in itertools.count(1):
        if not target.exists():
            break
        target = folder / f"{path.stem}.{copy}.jsonl"
    return target
