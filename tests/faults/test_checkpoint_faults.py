"""Disks that fill up, writers that are killed: what a run can go on from.

The processes here write small checkpoints with the code that the trainer uses; no trainer is
started."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest_e2e import ROOT
from torn_checkpoints import kill_writer

Injections = Callable[..., object]


def test_kill_9_while_a_checkpoint_is_written_loses_no_finished_one(
    tmp_path: Path, injection: Injections
) -> None:
    row = injection(
        "kill -9 while checkpoints are written, replaced and rotated", short=10, long=300
    )
    written = 0
    for _ in row:
        written += kill_writer(tmp_path, row.rng)
    row.lost = f"the one being written ({written} finished ones all kept until rotated)"


# --- a disk of one's own, 24 MiB, that the test fills and remounts ---

_SMALL_DISK = """
import json, random, shutil, sys
from pathlib import Path
from torn_checkpoints import find_checkpoint, text_of, write, write_checkpoint
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.run_folder import append_jsonl

disk, MiB = Path(sys.argv[1]), 1 << 20
run, ballast = disk / "run", disk / "ballast"
run.mkdir()

def refused(call, *words):
    try:
        call()
    except RunFolderError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError("not refused")

def fill_disk(rng, step):
    write(run, step, "the good one")
    ballast.write_bytes(bytes(rng.randrange(7 * MiB)))
    sizes = [rng.randrange(1, 9 * MiB) for _ in range(6)]
    # More than the disk holds, so that it fills up inside one of the files; a writer that says so in advance needs
    # to be told at once.
    sizes.append(25 * MiB)

    def fill(partial):
        for number, size in enumerate(sizes):
            (partial / f"folder{number}").mkdir()
            (partial / f"folder{number}" / "file").write_bytes(bytes(size))

    words = ("No space left on device", "SAVE_TOTAL_LIMIT", "RESUME=latest")
    refused(lambda: write_checkpoint(run, step, fill, {}, needed_bytes=0), *words)
    refused(lambda: write_checkpoint(run, step + 1, fill, {}, needed_bytes=0), *words)
    refused(lambda: write_checkpoint(run, step + 1, fill, {}, needed_bytes=25 * MiB), "MiB are left")
    check(step)
    ballast.unlink()
    write(run, step + 1)
    assert find_checkpoint(run).manifest.step == step + 1

def fill_up_records(rng, step):
    path, noted = run / "metrics.jsonl", []
    free = rng.randrange(1, 5) * 4096
    ballast.write_bytes(bytes(shutil.disk_usage(disk).free - free))
    refusals = 0
    for number in range(60):
        try:
            append_jsonl(path, {"step": number, "pad": "x" * rng.randrange(1200)})
            noted.append(number)
        except OSError as error:
            assert error.errno == 28, error
            refusals += 1
    assert refusals, "the disk did not fill up"
    ballast.unlink()
    append_jsonl(path, {"step": 60})
    kept = [json.loads(line)["step"] for line in path.read_bytes().splitlines()]
    assert kept == [*noted, 60], f"{noted} were written without an error, {kept} are there"
    path.unlink()

def check(step):
    found = find_checkpoint(run)
    assert (found.manifest.step, text_of(found), found.skipped) == (step, "the good one", ()), found
    assert not [path for path in run.iterdir() if path.name[0] == "." and path.name != ".lock"], list(run.iterdir())

for line in sys.stdin:
    fault, number = line.split()
    for path in list(run.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
    faults = {"full": fill_disk, "records": fill_up_records}
    faults[fault](random.Random(int(number)), int(number) % 1000)
    print("survived", flush=True)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Give `break_it(line)`: one fault on a disk of 24 MiB; the process that owns the mount says
    how it went.
    """
    mount = f"mount -t tmpfs -o size=24m tmpfs {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("a small file system of one's own cannot be mounted here (unshare -rm)")
    command = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        f'{mount} && exec "$0" -c "$1" {tmp_path}',
        sys.executable,
        _SMALL_DISK,
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT / "tests")])},
    )
    assert process.stdin and process.stdout and process.stderr

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
