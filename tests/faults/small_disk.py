"""Faults of a disk that is full, made on a small file system: `python small_disk.py DISK`.

DISK is the mount of a file system of 24 MiB that nobody else uses. Each line of the input names a
fault and a number that draws its details, e.g. "full 17"; the answer to a fault that was survived
is the line "survived".
"""

import errno
import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.run_folder import append_jsonl
from torn_checkpoints import find_checkpoint, text_of, write, write_checkpoint

MIB = 1 << 20
BLOCK = 4096
TOO_LARGE = 25 * MIB
"""More than the whole disk holds."""
GOOD_TEXT = "the good one"
OUT_OF_SPACE = ("No space left on device", "SAVE_TOTAL_LIMIT", "RESUME=latest")
"""What the message about a full disk says."""


class SmallDisk:
    """The run folder on the small disk, and the ballast that fills the disk up."""

    def __init__(self, disk: Path) -> None:
        """Make the run folder."""
        self.disk = disk
        self.run = disk / "run"
        self.run.mkdir()
        self.ballast = disk / "ballast"

    def clear(self) -> None:
        """Remove the checkpoints of an earlier fault."""
        for path in list(self.run.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)

    def fill_up_checkpoint(self, rng: random.Random, step: int) -> None:
        """Let the disk fill up at a random byte of a checkpoint; the one before must stay."""
        write(self.run, step, GOOD_TEXT)
        self.ballast.write_bytes(bytes(rng.randrange(7 * MIB)))
        sizes = [rng.randrange(1, 9 * MIB) for _ in range(6)]
        # So that the disk fills up inside one of the files in any case.
        sizes.append(TOO_LARGE)

        def fill(partial: Path) -> None:
            for number, size in enumerate(sizes):
                folder = partial / f"folder{number}"
                folder.mkdir()
                (folder / "file").write_bytes(bytes(size))

        def write_again() -> None:
            write_checkpoint(self.run, step, fill, {}, needed_bytes=0)

        def write_next() -> None:
            write_checkpoint(self.run, step + 1, fill, {}, needed_bytes=0)

        def write_what_is_announced() -> None:
            write_checkpoint(self.run, step + 1, fill, {}, needed_bytes=TOO_LARGE)

        expect_refusal(write_again, OUT_OF_SPACE)
        expect_refusal(write_next, OUT_OF_SPACE)
        # A writer that announces its size is refused before it writes.
        expect_refusal(write_what_is_announced, ("MiB are left",))
        self.check(step)
        self.ballast.unlink()
        write(self.run, step + 1)
        assert find_checkpoint(self.run).manifest.step == step + 1

    def fill_up_records(self, rng: random.Random, _: int) -> None:
        """Let the disk fill up at a random byte of metrics.jsonl; no finished row may be lost."""
        path = self.run / "metrics.jsonl"
        free = rng.randrange(1, 5) * BLOCK
        self.ballast.write_bytes(bytes(shutil.disk_usage(self.disk).free - free))
        written = []
        num_refused = 0
        for number in range(60):
            try:
                append_jsonl(path, {"step": number, "pad": "x" * rng.randrange(1200)})
                written.append(number)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                num_refused += 1
        assert num_refused > 0, "the disk did not fill up"
        self.ballast.unlink()
        append_jsonl(path, {"step": 60})
        kept = [json.loads(line)["step"] for line in path.read_bytes().splitlines()]
        expected = [*written, 60]
        assert kept == expected, f"{expected} were written without an error, {kept} are there"
        path.unlink()

    def check(self, step: int) -> None:
        """Check that the good checkpoint is found, and that nothing half-written is left."""
        checkpoint = find_checkpoint(self.run)
        assert checkpoint.manifest.step == step, checkpoint
        assert text_of(checkpoint) == GOOD_TEXT, checkpoint
        assert checkpoint.skipped == (), checkpoint
        for path in self.run.iterdir():
            is_hidden = path.name.startswith(".")
            assert not is_hidden or path.name == ".lock", list(self.run.iterdir())


def expect_refusal(call: Callable[[], object], parts: tuple[str, ...]) -> None:
    """Check that a call raises a RunFolderError whose message has these parts."""
    try:
        call()
    except RunFolderError as error:
        missing = [part for part in parts if part not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError("not refused")


def main() -> None:
    """Make one fault for each line of the input."""
    disk = SmallDisk(Path(sys.argv[1]))
    faults = {"full": disk.fill_up_checkpoint, "records": disk.fill_up_records}
    for line in sys.stdin:
        fault, number = line.split()
        disk.clear()
        faults[fault](random.Random(int(number)), int(number) % 1000)
        print("survived", flush=True)


if __name__ == "__main__":
    main()
