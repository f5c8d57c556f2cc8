"""Disks that fill up, writers that are killed: what a run can resume from.

The processes here write small checkpoints with the code that the trainer uses; no trainer is
started.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import UNSHARE, can_mount

from conftest_e2e import ROOT
from torn_checkpoints import kill_writer

Injections = Callable[..., object]

SMALL_DISK = Path(__file__).parent / "small_disk.py"


def test_kill_9_while_a_checkpoint_is_written_loses_no_finished_one(
    tmp_path: Path, injection: Injections
) -> None:
    row = injection(
        "kill -9 while checkpoints are written, replaced and rotated", short=10, long=300
    )
    num_written = 0
    for _ in row:
        num_written += kill_writer(tmp_path, row.rng)
    row.lost = f"the one being written ({num_written} finished ones all kept until rotated)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Give `break_it(line)`: one fault on a disk of 24 MiB.

    The process that owns the mount reports whether it survived the fault: see small_disk.py.
    """
    if not can_mount(tmp_path):
        pytest.skip("a small file system of one's own cannot be mounted here (unshare -rm)")
    mount = f"mount -t tmpfs -o size=24m tmpfs {tmp_path}"
    script = f'{mount} && exec "$0" "$@"'
    command = [*UNSHARE, "sh", "-c", script, sys.executable, str(SMALL_DISK), str(tmp_path)]
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(ROOT / "tests")])
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    def break_it(line: str) -> None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer == "survived\n", process.stderr.read()

    yield break_it
    process.stdin.close()
    process.wait(timeout=20)
    process.stdout.close()
    process.stderr.close()


def test_a_disk_that_fills_up_inside_a_checkpoint(
    small_disk: Callable[[str], None], injection: Injections
) -> None:
    row = injection(
        "a real full disk at a random byte of a checkpoint",
        short=5,
        long=100,
        lost="the one being written",
    )
    for _ in row:
        small_disk(f"full {row.rng.getrandbits(32)}")


def test_a_disk_that_fills_up_inside_a_record(
    small_disk: Callable[[str], None], injection: Injections
) -> None:
    row = injection(
        "a real full disk at a random byte of metrics.jsonl",
        short=5,
        long=200,
        lost="the rows that said so",
    )
    for _ in row:
        small_disk(f"records {row.rng.getrandbits(32)}")
