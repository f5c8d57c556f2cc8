"""What reaches files, TensorBoard and W&B, and what a failing monitor does to the training."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerState

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking import file_monitor
from hanabi_grpo.tracking.callback import TrackingCallback, make_monitors
from hanabi_grpo.tracking.file_monitor import FileMonitor
from hanabi_grpo.tracking.interval import Interval, IntervalMonitor
from hanabi_grpo.tracking.monitor import Monitor, MonitorGroup, StepRow
from hanabi_grpo.tracking.tensorboard_monitor import TensorBoardMonitor
from hanabi_grpo.tracking.terminal_monitor import TerminalMonitor
from hanabi_grpo.tracking.wandb_monitor import WandbMonitor


class RecordingMonitor(Monitor):
    """Keeps its calls; fails at those that are named."""

    name = "recording"

    def __init__(self, fails_at: Sequence[str] = (), error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._fails_at = fails_at
        self._error = error or RuntimeError("out of paper")

    def start(self, step: int) -> None:
        self._call("start", step)

    def log(self, row: StepRow) -> None:
        self._call("log", row.step)

    def finish(self, exit_code: int) -> None:
        self._call("finish", exit_code)

    def _call(self, name: str, value: int) -> None:
        self.calls.append(f"{name} {value}")
        if name in self._fails_at:
            raise self._error


def row(step: int, **metrics: float | None) -> StepRow:
    return StepRow(step=step, max_steps=10, seconds=0.5, metrics={"games": 8.0, **metrics})


def train(callback: TrackingCallback, *, after: int, scores: Sequence[float]) -> None:
    """Let a callback see a run's steps after a checkpoint, each with a score."""
    state = TrainerState(global_step=after, max_steps=10)
    callback.on_train_begin(None, state, None)
    for score in scores:
        state.global_step += 1
        callback.on_log(None, state, None, {"games": 8.0, "score/mean": score})


def kinds(monitors: Sequence[Monitor]) -> list[type[Monitor]]:
    """Return the types of monitors, also of those that get a row for several steps."""
    bare = [each.monitor if isinstance(each, IntervalMonitor) else each for each in monitors]
    return [type(each) for each in bare]


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of a figure, as TensorBoard reads them."""
    accumulator = EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def rows_of(run: Path) -> list[int]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in records]


def test_report_to_chooses_the_monitors_beside_file_and_terminal(tmp_path: Path) -> None:
    for report_to, expected in (
        ("none", [FileMonitor, TerminalMonitor]),
        ("tensorboard", [FileMonitor, TensorBoardMonitor, TerminalMonitor]),
        ("wandb", [FileMonitor, WandbMonitor, TerminalMonitor]),
        ("wandb,tensorboard", [FileMonitor, TensorBoardMonitor, WandbMonitor, TerminalMonitor]),
    ):
        assert kinds(make_monitors(Settings(report_to=report_to), tmp_path)) == expected
    disabled = Settings(report_to="wandb", wandb_mode="disabled")
    assert WandbMonitor not in kinds(make_monitors(disabled, tmp_path))


def test_logging_steps_joins_steps_for_terminal_and_tensorboard_but_not_in_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = Settings(report_to="tensorboard", logging_steps=4)
    callback = TrackingCallback(settings, tmp_path)
    train(callback, after=2, scores=[1.0, 3.0, 5.0, 5.0, 5.0, 7.0, 9.0, 11.0])
    # The mean of steps 3 and 4 (the run resumed from 2), of 5 to 8, and of the last two.
    expected = [(4, 2.0), (8, 5.5), (10, 10.0)]
    assert scalars(tmp_path, "score/mean") == expected
    callback.close()
    assert scalars(tmp_path, "score/mean") == expected
    lines = [message for message in caplog.messages if message.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == ["step 4/10", "step 8/10", "step 10/10"]
    assert "score 5.50" in lines[1]
    assert rows_of(tmp_path) == [3, 4, 5, 6, 7, 8, 9, 10]


def test_the_interval_in_which_a_run_is_resumed_has_its_steps_before_the_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = Settings(report_to="tensorboard", logging_steps=4)
    # It is killed in step 8, so that nothing of the second interval was logged.
    killed = TrackingCallback(settings, tmp_path)
    train(killed, after=0, scores=[1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 6.0])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    # A resume from step 6 moves the row of step 7 aside.
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:6]))
    resumed = TrackingCallback(settings, tmp_path)
    train(resumed, after=6, scores=[8.0, 10.0, 20.0])
    resumed.close()
    # (2 + 4 + 8 + 10) / 4, then the last step alone.
    assert scalars(tmp_path, "score/mean") == [(4, 1.0), (8, 6.0), (9, 20.0)]
    assert [step for step, _ in scalars(tmp_path, "games")] == [4, 8, 9]
    shown = [message for message in caplog.messages if message.startswith("step 8/10")]
    assert "score 6.00" in shown[-1]


def test_a_resumed_run_that_makes_no_step_logs_nothing() -> None:
    interval = Interval(4)
    interval.resume(6, [{"step": 5, "loss": 1.0}, {"step": 6, "loss": 2.0}])
    assert interval.take_rest() is None


def test_a_run_that_is_stopped_within_an_interval_logs_what_it_has(tmp_path: Path) -> None:
    callback = TrackingCallback(Settings(report_to="tensorboard", logging_steps=4), tmp_path)
    train(callback, after=0, scores=[1.0, 2.0])
    callback.close(exit_code=130)
    assert scalars(tmp_path, "score/mean") == [(2, 1.5)]


def test_a_figure_of_some_steps_is_the_mean_over_those() -> None:
    interval = Interval(3)
    assert interval.add(1, {"loss": 1.0, "validation/score/mean": 2.0}) is None
    assert interval.add(2, {"loss": None}) is None
    assert interval.add(3, {"loss": 2.0}) == {"loss": 1.5, "validation/score/mean": 2.0}
    assert interval.take_rest() is None


def test_the_rows_of_a_run_arrive_in_tensorboard_and_in_the_file(tmp_path: Path) -> None:
    callback = TrackingCallback(Settings(report_to="tensorboard"), tmp_path)
    train(callback, after=0, scores=[1.0, 2.0, 3.0])
    # Before the end: a run that is killed leaves all its steps.
    assert scalars(tmp_path, "score/mean") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    callback.close()
    assert scalars(tmp_path, "games") == [(1, 8.0), (2, 8.0), (3, 8.0)]
    assert rows_of(tmp_path) == [1, 2, 3]


def test_a_resumed_run_shows_no_step_twice_in_tensorboard(tmp_path: Path) -> None:
    settings = Settings(report_to="tensorboard")
    killed = TrackingCallback(settings, tmp_path)
    train(killed, after=0, scores=[1.0, 2.0, 3.0, 4.0])
    resumed = TrackingCallback(settings, tmp_path)
    train(resumed, after=2, scores=[5.0, 6.0, 7.0])
    resumed.close()
    assert scalars(tmp_path, "score/mean") == [(1, 1.0), (2, 2.0), (3, 5.0), (4, 6.0), (5, 7.0)]


def test_figures_that_are_no_finite_number_are_left_out_of_tensorboard(tmp_path: Path) -> None:
    monitor = TensorBoardMonitor(tmp_path)
    monitor.start(0)
    monitor.log(row(1, loss=None))
    monitor.log(row(2, loss=float("nan")))
    monitor.log(row(3, loss=0.25))
    monitor.finish(0)
    assert scalars(tmp_path, "loss") == [(3, 0.25)]


def test_wandb_and_tensorboard_work_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror_calls: list[str] = []

    class FakeMirror:
        def __init__(self, run_folder: Path, from_step: int) -> None:
            mirror_calls.append(f"from {from_step}")

        def check(self) -> None:
            mirror_calls.append(f"check after {rows_of(tmp_path)[-1]}")

        def close(self, exit_code: int) -> None:
            mirror_calls.append(f"close {exit_code}")

    monkeypatch.setattr("hanabi_grpo.tracking.wandb_monitor.Mirror", FakeMirror)
    callback = TrackingCallback(Settings(report_to="wandb,tensorboard"), tmp_path)
    train(callback, after=2, scores=[1.0, 2.0])
    callback.close(exit_code=1)
    assert mirror_calls == ["from 2", "check after 3", "check after 4", "close 1"]
    assert scalars(tmp_path, "score/mean") == [(3, 1.0), (4, 2.0)]


def test_a_monitor_that_raises_in_log_does_not_stop_training_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = RecordingMonitor(fails_at=["log", "finish"])
    working = RecordingMonitor()
    callback = TrackingCallback(Settings(), tmp_path, [failing, working])
    train(callback, after=0, scores=[1.0, 2.0, 3.0])
    callback.close()
    assert working.calls == ["start 0", "log 1", "log 2", "log 3", "finish 0"]
    assert failing.calls == working.calls
    assert warnings(caplog) == [
        "recording failed (RuntimeError: out of paper); training continues, and further "
        "failures of it are not reported"
    ]


def test_a_monitor_that_cannot_be_started_is_reported_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = RecordingMonitor(fails_at=["start"], error=OSError("no space left"))
    working = RecordingMonitor()
    group = MonitorGroup([failing, working])
    group.start(4)
    group.log(row(5))
    group.finish(0)
    assert failing.calls == ["start 4"]
    assert working.calls == ["start 4", "log 5", "finish 0"]
    [warning] = warnings(caplog)
    assert warning.startswith("recording cannot be started (OSError: no space left)")


def test_a_monitor_that_is_misconfigured_stops_the_run_at_its_start(tmp_path: Path) -> None:
    started = RecordingMonitor()
    misconfigured = RecordingMonitor(fails_at=["start"], error=SettingsError("no such project"))
    callback = TrackingCallback(Settings(), tmp_path, [started, misconfigured])
    with pytest.raises(SettingsError, match="no such project"):
        train(callback, after=0, scores=[1.0])
    callback.close(exit_code=1)
    assert started.calls == ["start 0", "finish 1"], "it is closed, and only once"
    assert misconfigured.calls == ["start 0"]


def test_tensorboard_that_is_not_installed_stops_the_run_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    callback = TrackingCallback(Settings(report_to="tensorboard"), tmp_path)
    with pytest.raises(SettingsError, match=r"^REPORT_TO=tensorboard: the package tensorboard"):
        train(callback, after=0, scores=[1.0])


def test_rows_wait_while_the_disk_is_full_and_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = file_monitor.append_jsonl

    def refuse(path: Path, line: object) -> None:
        raise OSError(28, "No space left on device")

    monitor = FileMonitor(tmp_path)
    monkeypatch.setattr(file_monitor, "append_jsonl", refuse)
    monitor.log(row(1))
    monitor.log(row(2))
    assert warnings(caplog) == [
        f"metrics.jsonl cannot be written (No space left on device): {count} rows are kept in "
        f"memory and written with the next one; free space in {tmp_path}"
        for count in (1, 2)
    ]
    monkeypatch.setattr(file_monitor, "append_jsonl", write)
    monitor.log(row(3))
    assert rows_of(tmp_path) == [1, 2, 3]


def test_a_row_that_is_no_json_does_not_keep_later_ones_from_the_file(tmp_path: Path) -> None:
    group = MonitorGroup([FileMonitor(tmp_path)])
    group.start(0)
    group.log(StepRow(step=1, max_steps=10, seconds=0.5, metrics={"games": object()}))
    group.log(row(2))
    assert rows_of(tmp_path) == [2]


def test_rows_that_wait_are_written_at_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = file_monitor.append_jsonl

    def refuse(path: Path, line: object) -> None:
        raise OSError(28, "No space left on device")

    monitor = FileMonitor(tmp_path)
    monkeypatch.setattr(file_monitor, "append_jsonl", refuse)
    monitor.log(row(1))
    monkeypatch.setattr(file_monitor, "append_jsonl", write)
    monitor.finish(0)
    assert rows_of(tmp_path) == [1]


def test_the_line_of_a_step_leaves_out_what_the_step_could_not_measure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    figures = {"score/mean": None, "score/se": None, "illegal_per_game": 0.5}
    TerminalMonitor().log(StepRow(step=3, max_steps=3, seconds=1.0, metrics=figures))
    assert caplog.messages == ["step 3/3  illegal 0.50"]
