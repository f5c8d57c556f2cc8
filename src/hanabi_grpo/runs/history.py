"""Records of a run: rows of `metrics.jsonl`, incidents, and records that a resume moves aside."""

import errno
import itertools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.files import MAX_METRICS_BYTES, open_plain_to_append, read_bytes, write_text_atomic
from hanabi_grpo.runs.run_folder import append_jsonl

logger = logging.getLogger(__name__)

_METRICS = "metrics.jsonl"
_DISCARDED_METRICS = "metrics.discarded.jsonl"
_INCIDENTS = "incidents.jsonl"
MAX_STEP = 2**31 - 1
"""Largest step: policy versions, which count steps, have the same limit on the wire."""
MAX_FIGURE = 1e100
"""Largest absolute value that counts as a metric: its sums and squares stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The content of `metrics.jsonl`."""

    rows: list[dict[str, Any]]
    """The rows of steps, oldest first."""
    num_damaged: int = 0
    """Complete lines that were left out because they are not JSON, or have no valid step."""

    @property
    def note(self) -> str:
        """A sentence about lines that were left out; "" if there are none."""
        if not self.num_damaged:
            return ""
        lines = "1 line is" if self.num_damaged == 1 else f"{self.num_damaged} lines are"
        return (
            f"{_METRICS}: {lines} left out: not JSON, or a step that is not a whole number from 0 "
            f"to {MAX_STEP}."
        )


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of steps, oldest first; an empty list if the file is missing.

    The log reports how many lines were left out, see `read_whole_history`.

    Raises:
        OSError: The file exists, but cannot be read.
    """
    history = read_whole_history(path)
    if history.note:
        logger.warning("%s: %s", path.parent, history.note)
    return history.rows


def read_whole_history(path: Path) -> History:
    """Read `metrics.jsonl`; a missing file has no rows.

    If a step has two rows, the last one counts. Lines of other records are left out, and so are
    damaged ones: the file of a killed run may contain torn lines. The last line may still be in the
    process of being written, so it does not count as damaged.

    Raises:
        OSError: The file exists, but cannot be read.
    """
    try:
        content = read_bytes(path, MAX_METRICS_BYTES)
    except FileNotFoundError:
        return History(rows=[])
    whole, _, last = content.rpartition(b"\n")
    lines = whole.splitlines()
    rows: dict[int, dict[str, Any]] = {}
    num_damaged = 0
    for line in [*lines, last]:
        row = read_row(line)
        if row is not None:
            rows[row["step"]] = row
        elif line is not last and _is_damaged(line):
            num_damaged += 1
    return History(rows=[rows[step] for step in sorted(rows)], num_damaged=num_damaged)


def read_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a step; None for any other line."""
    row = _parse_row(line)
    return row if row is not None and _is_step(row.get("step")) else None


def _parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line with metrics of games, whatever its step; None for other lines."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and "games" in row else None


def _is_step(value: object) -> bool:
    # A bool is an int as well.
    return type(value) is int and 0 <= value <= MAX_STEP


def _is_damaged(line: bytes) -> bool:
    """Tell whether a line that is not the row of a step is not another record either."""
    if not line.strip():
        return False
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return True
    return isinstance(record, dict) and "games" in record


def number(value: object) -> float | None:
    """Return a value of a row as a float; None if it is not a number within `MAX_FIGURE`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A NaN is not within anything.
    return float(value) if -MAX_FIGURE <= value <= MAX_FIGURE else None


def trained_presets(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the presets of the training games, e.g. ["laptop"]; [] if the rows do not name any.

    They are those with both a number of games and a score.
    """
    metrics: set[str] = set()
    for row in rows:
        metrics.update(row)
    presets = []
    for name in sorted(metrics):
        preset = name.removeprefix("games/")
        if preset != name and f"score/{preset}" in metrics:
            presets.append(preset)
    return presets


class IncidentLog:
    """Records problems that do not end a run, in `incidents.jsonl` and in the log."""

    def __init__(self, run_folder: Path) -> None:
        """Prepare; the file appears with the first incident."""
        self.path = run_folder / _INCIDENTS
        self.counts: Counter[str] = Counter()
        """Incidents by kind."""

    def record(self, kind: str, message: str, **details: object) -> None:
        """Write one incident, and log it.

        Args:
            kind: A short stable name, e.g. "server_gone".
            message: A sentence.
            **details: Facts, e.g. step=12.
        """
        logger.warning("%s: %s", kind, message)
        self.write(kind, message, details)

    def write(self, kind: str, message: str, details: Mapping[str, object]) -> None:
        """Write one incident that the caller logs itself; see `record`."""
        self.counts[kind] += 1
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
    content = read_bytes(path, MAX_METRICS_BYTES)
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
    except (ValueError, RecursionError):
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
    with open_plain_to_append(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(block)))
        end = file.read(len(block))
        if end == block:
            return
        if end and not end.endswith(b"\n"):
            block = b"\n" + block
        if file.write(block) != len(block):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
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
        "step_7.jsonl", and "step_7.1.jsonl" if the folder already has a "step_7.jsonl".
    """
    target = folder / path.name
    for copy in itertools.count(1):
        if not target.exists():
            break
        target = folder / f"{path.stem}.{copy}.jsonl"
    return target
