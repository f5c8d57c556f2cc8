"""Kills processes that write checkpoints, and checks what is left: for unit tests (few kills) and
injections (many).
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


def write(run_folder: Path, step: int, text: str = "", size: int = 2000) -> Path:
    """Write a checkpoint whose files and manifest all hold the same text."""
    text = text or f"step {step};"

    def fill(partial: Path) -> None:
        for name in FILES:
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_text(json.dumps({"text": text, "pad": "x" * size}))

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
    """Start a writer, end it by SIGKILL at a random moment and check; returns how many checkpoints
    it had finished.

    Every writer takes up the newest checkpoint, writes each step twice and keeps two. A checkpoint
    that the writer had finished must be there after the kill, in one piece."""
    write(run_folder, 0)
    readable, writable = os.pipe()
    pid = in_child(lambda: _write_for_ever(run_folder, writable))
    os.close(writable)
    try:
        select.select([readable], [], [], 20)
        time.sleep(rng.random() * 0.05)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(readable, "rb") as pipe:
        finished = [int(line) for line in pipe.read().split(b"\n")[:-1]]
    found = find_checkpoint(run_folder)
    text_of(found)
    if not finished or found.manifest.step < finished[-1]:
        raise AssertionError(f"finished {finished[-1:]}, but the newest valid one is {found}")
    return len(finished)


def _write_for_ever(run_folder: Path, writable: int) -> None:
    recover_checkpoints(run_folder)
    step = find_checkpoint(run_folder).manifest.step
    while True:
        for attempt in ("first", "again"):
            write(run_folder, step, f"{step} {attempt} by {os.getpid()}", size=100_000)
            os.write(writable, b"%d\n" % step)
            rotate(run_folder, 2)
        step += 1


def die_at_call(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that dies before its call number `number` that changes the disk; False:
    it got through.
    """

    def counted() -> None:
        left = number

        def counting(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return real(*args, **options)

            return call

        for name in ("rename", "replace", "mkdir", "rmdir", "unlink", "fsync", "fchmod"):
            setattr(os, name, counting(getattr(os, name)))
        work()

    _, status = os.waitpid(in_child(counted), 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 9):
        raise AssertionError(f"the child failed by itself ({code})")
    return code == 9


def copy_run(source: Path, target: Path) -> Path:
    """Replace `target` by a copy of a run folder."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))
