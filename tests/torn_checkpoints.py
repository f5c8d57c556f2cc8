"""Kills processes that write checkpoints, and checks what is left.

For unit tests (few kills) and injections (many).
"""

import json
import os
import random
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hanabi_grpo.runs.checkpoints import (
    FoundCheckpoint,
    find_checkpoint,
    recover_checkpoints,
    rotate,
    write_checkpoint,
)

FILES = (
    "player_0/adapter_model.safetensors",
    "player_1/adapter_model.safetensors",
    "trainer/state.json",
)
"""What `write` puts into a checkpoint."""
DISK_CALLS = ("rename", "replace", "mkdir", "rmdir", "unlink", "fsync", "fchmod")
"""Functions of `os` that change the disk."""
_KILLED = 9
"""Exit code of a child that `die_at_call` ended."""
_START_SECONDS = 20
"""Longest wait for a writer's first checkpoint."""
_LONGEST_LIFE_SECONDS = 0.05
"""A writer is killed at a random moment of this time after its first checkpoint."""


def write(run_folder: Path, step: int, text: str = "", size: int = 2000) -> Path:
    """Write a checkpoint whose files and manifest all hold the same text.

    Args:
        run_folder: Where.
        step: Its step.
        text: The text; empty: one that names the step.
        size: Bytes of each file, about.
    """
    text = text or f"step {step};"

    def fill(partial: Path) -> None:
        for name in FILES:
            path = partial / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"text": text, "pad": "x" * size}))

    return write_checkpoint(run_folder, step, fill, {"text": text}, needed_bytes=3 * size)


def text_of(found: FoundCheckpoint) -> str:
    """Return the text that all files of a checkpoint agree on."""
    texts = {json.loads((found.folder / name).read_text())["text"] for name in FILES}
    if texts != {found.manifest.facts["text"]} or set(found.manifest.files) != set(FILES):
        raise AssertionError(
            f"{found.folder}: files of several writes in one checkpoint: {texts}, {found.manifest}"
        )
    return texts.pop()


def in_child(work: Callable[[], object]) -> int:
    """Fork, work there, and return the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def kill_writer(run_folder: Path, rng: random.Random) -> int:
    """Start a writer, end it by SIGKILL at a random moment, and check what is left.

    Every writer takes up the newest checkpoint, writes each step twice and keeps two. A checkpoint
    that the writer had finished must be there after the kill, in one piece.

    Returns:
        How many checkpoints it had finished.
    """
    write(run_folder, 0)
    readable, writable = os.pipe()
    pid = in_child(lambda: _write_for_ever(run_folder, writable))
    os.close(writable)
    try:
        select.select([readable], [], [], _START_SECONDS)
        time.sleep(rng.random() * _LONGEST_LIFE_SECONDS)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(readable, "rb") as pipe:
        lines = pipe.read().split(b"\n")
    finished = [int(line) for line in lines[:-1]]
    newest = find_checkpoint(run_folder)
    text_of(newest)
    if not finished or newest.manifest.step < finished[-1]:
        raise AssertionError(f"finished {finished[-1:]}, but the newest valid one is {newest}")
    return len(finished)


def _write_for_ever(run_folder: Path, writable: int) -> None:
    """Write checkpoints, and each finished step's number into a pipe."""
    recover_checkpoints(run_folder)
    step = find_checkpoint(run_folder).manifest.step
    while True:
        for attempt in ("first", "again"):
            write(run_folder, step, f"{step} {attempt} by {os.getpid()}", size=100_000)
            os.write(writable, b"%d\n" % step)
            rotate(run_folder, 2)
        step += 1


def die_at_call(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that dies before one of its calls that change the disk.

    Args:
        number: Which of these calls, from 1.
        work: What to run.

    Returns:
        Whether it died; False: it got through with fewer calls.
    """

    def work_until_the_call() -> None:
        left = number

        def count_calls(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(_KILLED)
                return real(*args, **options)

            return call

        for name in DISK_CALLS:
            setattr(os, name, count_calls(getattr(os, name)))
        work()

    _, status = os.waitpid(in_child(work_until_the_call), 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, _KILLED):
        raise AssertionError(f"the child failed by itself ({code})")
    return code == _KILLED


def copy_run(source: Path, target: Path) -> Path:
    """Replace `target` by a copy of a run folder."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
