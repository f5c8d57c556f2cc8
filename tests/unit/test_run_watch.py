"""`hanabi-grpo watch`: a run folder while it is written, frames of any size, a real terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.report.run_views.figures import series
from hanabi_grpo.report.run_views.run_watch import RunState, RunWatch
from hanabi_grpo.report.run_views.screen import RunScreen
from hanabi_grpo.runs.alarms import AlarmWatch, alarms_of
from hanabi_grpo.runs.history import IncidentLog, cut_records, read_history
from hanabi_grpo.runs.validation import Validated, write_validations
from tracked_runs import SECRET, add_checkpoint, add_row, tracked_run

_SECONDS = 60.0
"""How long a terminal is waited for."""


def frame(state: RunState, width: int = 120, height: int | None = None, first: int = 0) -> str:
    """Return a frame of the dashboard as text."""
    console = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    options = console.options if height is None else console.options.update(height=height)
    for line in console.render_lines(
        RunScreen(state, first=first), options.update(width=width), pad=False
    ):
        text = "".join(segment.text for segment in line)
        console.print(text, markup=False, no_wrap=True, crop=False)
    return console.export_text()


def test_a_run_that_is_not_there_yet_is_waited_for_and_then_followed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    watch = RunWatch(folder)
    assert not watch.look().is_there
    assert "No run yet; it appears here" in frame(watch.look())
    tracked_run(folder, steps=0, games=False, MAX_STEPS="10")
    assert watch.look().is_there
    assert "No step yet" in frame(watch.look())
    for step in (1, 2, 3):
        add_row(folder, step, step_time=2.0)
    add_checkpoint(folder, 3)
    state = watch.look()
    assert state.step == 3
    assert state.max_steps == 10
    assert state.version == 2
    assert state.checkpoints == (3,)
    assert state.seconds_left == 14.0
    assert "step 3/10  played by version 2  checkpoint 3  2.0 s/step" in frame(state)


def test_with_overlap_the_version_before_played(tmp_path: Path) -> None:
    add_row(tmp_path, 9, staleness=1.0)
    assert RunWatch(tmp_path).look().version == 7


def test_only_new_lines_are_read_and_torn_or_foreign_ones_do_no_harm(tmp_path: Path) -> None:
    folder = tracked_run(tmp_path / "run", steps=2, games=False)
    watch = RunWatch(folder)
    assert watch.look().step == 2
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "games": 1.0, "score/mean": NaN}\n')
        file.write('[1]\nnull\n{"train_runtime": 3}\n\xff\n')
        file.write('{"step": 4, "ga')
    state = watch.look()
    assert state.step == 3
    assert series(state.rows, "score/mean") == ([1, 2], [1.0, 1.1])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('mes": 1.0, "score/mean": 2.0}\n')
    assert series(watch.look().rows, "score/mean")[1][-1] == 2.0


def test_steps_that_a_resumed_run_makes_again_replace_the_old_ones(tmp_path: Path) -> None:
    folder = tracked_run(tmp_path / "run", steps=6, games=False)
    watch = RunWatch(folder)
    assert watch.look().step == 6
    cut_records(folder, 4)
    for step in (5, 6, 7):
        add_row(folder, step, **{"score/mean": 9.0})
    state = watch.look()
    assert series(state.rows, "score/mean")[1] == pytest.approx([1.0, 1.1, 1.2, 1.3, 9.0, 9.0, 9.0])
    cut_records(folder, 2)
    assert watch.look().step == 2


def test_alarms_are_those_of_the_whole_history_also_when_a_step_is_there_twice(
    tmp_path: Path,
) -> None:
    folder = tracked_run(tmp_path / "run", steps=0, games=False)
    watch = RunWatch(folder)
    for step in (*range(1, 61), 60):
        add_row(folder, step, **{"player_0/blind_share": 0.95, "player_1/blind_share": 0.1})
        if step % 7 == 0:
            watch.look()
    state = watch.look()
    rows = read_history(folder / "metrics.jsonl")
    assert state.raised == AlarmWatch.after(rows, alarms_of({})).raised
    assert "blind_play: player_0: share of moves" in " ".join(frame(state).split())


def test_incidents_are_counted_and_their_text_steers_no_terminal(tmp_path: Path) -> None:
    folder = tracked_run(tmp_path / "run", steps=1, games=False)
    log = IncidentLog(folder)
    log.record("server_gone", "away \x1b[31m\u202e", step=3)
    log.record("alarm", "not an incident of its own here", step=4)
    with (folder / "incidents.jsonl").open("a") as file:
        file.write('{"kind": 4}\n{"kind": "games_dropped", "time": 1e300}\n{"ki')
    state = RunWatch(folder).look()
    assert dict(state.incident_counts) == {"server_gone": 1, "alarm": 1, "games_dropped": 1}
    text = frame(state)
    assert "incidents: games_dropped 1, server_gone 1" in text
    assert "[U+202E]" in text
    assert "\x1b" not in text


HOLD_LOCK = """
import sys, time
from pathlib import Path
from hanabi_grpo.runs.run_folder import lock_run_folder
lock = lock_run_folder(Path(sys.argv[1]))
print(flush=True)
time.sleep(600)
"""
"""A program that holds the lock of a run folder as a trainer does."""


def test_the_lock_tells_whether_a_trainer_is_there(
    tmp_path: Path, start_process: Callable[..., "subprocess.Popen[str]"]
) -> None:
    folder = tracked_run(tmp_path / "run", steps=1, games=False)
    assert RunWatch(folder).look().trainer == ""
    command = [sys.executable, "-c", HOLD_LOCK, str(folder)]
    process = start_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    state = RunWatch(folder).look()
    assert state.trainer.startswith(f"pid {process.pid} on ")
    assert f"trainer: {state.trainer}" in frame(state, 200)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    (tmp_path / "settings.json").write_text('{"settings": [')
    state = RunWatch(tmp_path).look()
    assert not state.is_there
    assert state.notes == (f"{tmp_path / 'metrics.jsonl'}: cannot be read (Is a directory)",)
    assert "Is a directory" in frame(state)


def test_a_folder_that_holds_its_run_as_train_is_that_run(tmp_path: Path) -> None:
    tracked_run(tmp_path / "demo" / "train", steps=2, games=False)
    state = RunWatch(tmp_path / "demo").look()
    assert state.step == 2
    assert state.name == "demo"


def test_a_frame_fits_every_terminal(tmp_path: Path) -> None:
    for players in (2, 5):
        folder = tracked_run(tmp_path / f"run-{players}", steps=4, games=True)
        rewards = {f"player_{player}/reward": 1.0 for player in range(players)}
        add_row(folder, 5, **rewards, step_time=1.0)
        state = RunWatch(folder).look()
        for width, height in product([20, 80, 107, 108], [None, 3, 24]):
            lines = frame(state, width, height).splitlines()
            assert max(map(len, lines)) <= width
            assert "run" in lines[0]


@pytest.mark.parametrize("num_players", [2, 5])
def test_small_negative_figures_are_whole_at_80_columns(tmp_path: Path, num_players: int) -> None:
    folder = tracked_run(tmp_path / "run", steps=0, games=False)
    rewards = {f"player_{player}/reward": -1.51e-08 for player in range(num_players)}
    add_row(folder, 1, **rewards, loss=-2.34e-08)
    text = frame(RunWatch(folder).look(), 80)
    assert text.count("-1.51e-08") == num_players
    assert "-2.34e-08" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_curve_of_the_exploitability_is_what_was_measured(tmp_path: Path) -> None:
    folder = tracked_run(
        tmp_path / "run",
        steps=0,
        games=False,
        HANABI_ENV="kuhn_poker",
        HANABI_PRESET="kuhn_poker",
    )
    for number, value in enumerate((0.9, 0.5, 0.123, 0.25)):
        add_row(folder, 20 * (number + 1), exploitability=value)
    lines = frame(RunWatch(folder).look(), 80, 40).splitlines()
    [title] = [number for number, line in enumerate(lines) if "exploitability, 0 in an" in line]
    assert lines[title + 1].split()[1] == "0.9"
    [scale] = [number for number, line in enumerate(lines) if "step 20" in line and "80" in line]
    assert lines[scale - 1].split()[1] == "0.123"


def test_tab_brings_every_panel_up_on_a_wide_and_low_terminal_too(tmp_path: Path) -> None:
    state = RunWatch(tracked_run(tmp_path / "run", steps=4, games=True)).look()
    assert "tab shows the next panel" in frame(state, 120, 12)
    tops = []
    for first in range(5):
        [top, *_] = [line for line in frame(state, 120, 12, first).splitlines() if "╭─" in line]
        tops.append(top.split()[1])
    # First both columns with the score on the left, then panel after panel, and round again.
    assert tops == ["mean", "alarms", "means", "seconds", "mean"]


def test_one_frame_is_printed_and_holds_no_key(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "my-run", steps=3)
    answer = CliRunner().invoke(app, ["watch", str(run), "--once"])
    assert answer.exit_code == 0
    assert SECRET not in answer.output
    assert answer.output.splitlines()[0].startswith("my-run")


@pytest.mark.parametrize(
    ("target", "option", "exit_code", "message"),
    [
        ("none", ["--once"], 1, "No run yet; it appears here"),
        ("file", ["--once"], 2, "is a file; give the folder of a run"),
        ("", ["--every", "0"], 2, "Invalid value for '--every'"),
    ],
    ids=["no run", "file", "no time"],
)
def test_what_cannot_be_watched_is_said_in_one_line(
    tmp_path: Path, target: str, option: list[str], exit_code: int, message: str
) -> None:
    (tmp_path / "file").write_text("")
    answer = CliRunner().invoke(app, ["watch", str(tmp_path / target), *option])
    assert answer.exit_code == exit_code
    assert message in answer.output.replace("\n", " ")


@pytest.mark.parametrize("key", ["q", "ctrl-c"])
def test_on_a_terminal_it_follows_the_run_its_size_and_keys(
    tmp_path: Path, start_process: Callable[..., "subprocess.Popen[str]"], key: str
) -> None:
    folder = tmp_path / "run"
    outer, inner = pty.openpty()
    _resize(inner, 30, 100)
    command = [sys.executable, "-m", "hanabi_grpo.cli", "watch", str(folder), "--every", "0.1"]
    environ = dict(os.environ)
    # Where pytest itself has set a size, it would stand above the terminal's.
    environ.pop("COLUMNS", None)
    environ.pop("LINES", None)
    environ["TERM"] = "xterm-256color"
    # A terminal of its own, so that Ctrl-C reaches this process and no other.
    process = start_process(
        command, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, env=environ
    )
    _read_until(outer, "No run yet; it appears here")
    tracked_run(folder, steps=2, games=False, MAX_STEPS="9")
    _read_until(outer, "step 2/9")
    add_row(folder, 3)
    _read_until(outer, "step 3/9")
    _resize(inner, 20, 60)
    _read_until(outer, "tab shows the next panel, q quits")
    os.write(outer, b"\t")
    _read_until(outer, "m\r\n╭─ alarms " + "─" * (60 - 11) + "╮")
    if key == "q":
        os.write(outer, b"q")
    else:
        os.killpg(process.pid, signal.SIGINT)
    # What is still written must be taken, or the process waits for the terminal.
    _read_until(outer, "\x1b[?1049l")
    assert process.wait(_SECONDS) == 0
    os.close(inner)
    os.close(outer)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read_until(terminal: int, wanted: str) -> str:
    text = ""
    deadline = time.monotonic() + _SECONDS
    while wanted not in text:
        seconds_left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([terminal], [], [], seconds_left)
        assert ready, f"{wanted!r} did not come: {text[-2000:]!r}"
        text += os.read(terminal, 65536).decode("utf-8", "replace")
    return text


def test_each_curve_of_the_validations_has_a_line_of_its_own(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=2, games=False)
    watch = RunWatch(run)
    assert "validation" not in frame(watch.look())
    rows = [
        Validated(step=0, score=1.0, se=0.25),
        Validated(step=0, score=-0.5, se=0.1, curve="kuhn", chooses=False),
    ]
    write_validations(run, rows)
    text = " ".join(frame(watch.look(), width=200).replace("│", " ").split())
    assert "validation training, chooses the best: best 1.000 ± 0.250 at step 0" in text
    assert "validation kuhn: best -0.500 ± 0.100 at step 0" in text
    (run / "validation.json").write_text("[")
    assert any("validation.json: not written by a run" in note for note in watch.look().notes)
