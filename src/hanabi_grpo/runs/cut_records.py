"""Records of steps that a resumed run takes again: moved aside, never lost."""

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.runs.run_folder import write_bytes_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRecords:
    """What `cut_records` moved."""

    rows: int
    """Lines of `metrics.jsonl`, a torn last one included; now in `metrics.discarded.jsonl`."""
    episodes: int
    """Files of games; now in `episodes/discarded/`."""


def cut_records(run_folder: Path, step: int) -> CutRecords:
    """Move aside what was recorded after the checkpoint of `step`; a kill at any moment loses nothing.

    `metrics.jsonl` has a row at the end of each step, so rows above `step` go, and lines that are no JSON (a torn
    last one). `episodes/step_M.jsonl` holds the games behind step M + 1, so files from M = `step` go.

    Raises:
        OSError: A file cannot be read, written or renamed.
    """
    return CutRecords(rows=_cut_metrics(run_folder, step), episodes=_move_episodes(run_folder / "episodes", step))


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
        _append_once(run_folder / "metrics.discarded.jsonl", b"".join(line + b"\n" for line in late))
    kept = b"".join(line + b"\n" for line in lines if line and not _is_late(line, step))
    write_bytes_atomic(path, kept)
    return len(late)


def _is_late(line: bytes, step: int) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return True
    return not isinstance(row, dict) or (isinstance(row.get("step"), int) and row["step"] > step)


def _append_once(path: Path, block: bytes) -> None:
    # A process killed between this and the shorter metrics.jsonl comes here again with the same lines.
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
    moved = 0
    for path in sorted(folder.glob("step_*.jsonl")):
        number = path.stem.removeprefix("step_")
        if not number.isdecimal() or int(number) < step:
            continue
        discarded = folder / "discarded"
        discarded.mkdir(exist_ok=True)
        names = itertools.chain([path.name], (f"{path.stem}.{copy}.jsonl" for copy in itertools.count(1)))
        os.rename(path, next(discarded / name for name in names if not (discarded / name).exists()))
        moved += 1
    return moved
