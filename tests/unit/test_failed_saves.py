"""What a run does when its disk is full for a while."""

from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.training import checkpoint
from hanabi_grpo.training.checkpoint import RETRY_SECONDS, SAVE_PATIENCE, CheckpointSaver
from hanabi_grpo.training.loop import train
from loop_parts import RunOfATest

STEPS = 6


class Clock:
    """Stands still but where somebody sleeps or moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


class Disk:
    """Refuses to hold checkpoints until the clock says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock, *, full_until: float) -> None:
        self.tries: list[float] = []
        self._clock = clock
        self._full_until = full_until
        self._write = CheckpointSaver._write
        monkeypatch.setattr(CheckpointSaver, "_write", lambda saver, *args: self.put(saver, *args))

    def put(self, saver: CheckpointSaver, *args: Any) -> None:
        self.tries.append(self._clock.now)
        if self._clock.now < self._full_until:
            raise RunFolderError("no space left on device.")
        self._write(saver, *args)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(checkpoint, "time", clock)
    return clock


def make_run(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, step_seconds: float
) -> RunOfATest:
    """Return a run of six steps that saves behind every second one."""
    made = RunOfATest(folder, num_steps=STEPS)
    made.events.save_every = 2
    end_step = made.events.end_step

    def end_step_later(*args: Any, **options: Any) -> Any:
        clock.now += step_seconds
        return end_step(*args, **options)

    monkeypatch.setattr(made.events, "end_step", end_step_later)
    return made


def test_short_steps_wait_between_tries_and_a_run_outlives_a_full_disk(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, clock, full_until=1000.0 + 5 * RETRY_SECONDS)
    made = make_run(tmp_path, clock, monkeypatch, step_seconds=RETRY_SECONDS / 2)
    train(made.run)
    waits = [after - before for before, after in zip(disk.tries, disk.tries[1:], strict=False)]
    assert min(waits) >= RETRY_SECONDS
    assert made.events.saved[-1].name == f"checkpoint-{STEPS}"
    assert (tmp_path / f"checkpoint-{STEPS}").is_dir()


def test_a_disk_that_stays_full_ends_the_run_after_its_patience_and_says_for_how_long(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, clock, full_until=1e9)
    made = make_run(tmp_path, clock, monkeypatch, step_seconds=1.0)
    with pytest.raises(
        RunFolderError, match=r"no space left .* saves in a row failed, over 6\d\d s; the earlier"
    ):
        train(made.run)
    # The last step waits; before it no step waits for the disk.
    assert set(clock.sleeps) == {RETRY_SECONDS}
    assert disk.tries[-1] - disk.tries[0] >= SAVE_PATIENCE


def test_long_steps_are_tried_three_times(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, clock, full_until=1e9)
    made = make_run(tmp_path, clock, monkeypatch, step_seconds=2 * SAVE_PATIENCE)
    made.events.save_every = 1
    with pytest.raises(RunFolderError, match=r"no space left .* 3 saves in a row failed"):
        train(made.run)
    assert len(disk.tries) == 3
    assert clock.sleeps == []
