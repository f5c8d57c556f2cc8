"""`hanabi-grpo watch`: one frame for scripts, a live one on a real terminal."""

import fcntl
import json
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
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from tracked_runs import SECRET, add_row, tracked_run

RUNNER = CliRunner()
ROOT = Path(__file__).parents[2]
_SECONDS = 60.0


def test_one_frame_for_people_and_one_as_json(tmp_path: Path) -> None:
    folder = tracked_run(tmp_path / "my-run", steps=3)
    answer = RUNNER.invoke(app, ["watch", str(folder), "--once"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.splitlines()[0].startswith("my-run")
    assert "last recorded game: step_000003" in answer.output
    data = json.loads(RUNNER.invoke(app, ["watch", str(folder), "--json"]).output)
    assert data["curve"] == [[1, 1.0], [2, 1.1], [3, 1.2]]
    assert data["players"]["player_1"]["reward"] == 1.5
    assert data["phases"] == {"push": pytest.approx(0.1)}
    assert data["game"]["moves"][0]["player"] == "player_0"
    assert SECRET not in answer.output + json.dumps(data)


def test_what_cannot_be_watched_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words, code, message in (
        ([str(tmp_path / "none"), "--once"], 1, "No run there yet"),
        ([str(tmp_path / "none"), "--json"], 1, '"is_there": false'),
        ([str(tmp_path / "file"), "--once"], 2, "is a file; give the folder of a run"),
        ([str(tmp_path), "--every", "0"], 2, "Invalid value for '--every'"),
    ):
        answer = RUNNER.invoke(app, ["watch", *words])
        assert answer.exit_code == code and message in answer.output.replace("\n", " ")


def test_on_a_terminal_it_follows_the_run_and_its_size_until_ctrl_c(
    tmp_path: Path, start_process: Callable[..., "subprocess.Popen[str]"]
) -> None:
    folder = tmp_path / "run"
    outer, inner = pty.openpty()
    _resize(inner, 30, 100)
    words = [sys.executable, "-m", "hanabi_grpo.cli", "watch", str(folder), "--every", "0.1"]
    # Where pytest itself has set a size, it would stand above the terminal's.
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environ["TERM"] = "xterm-256color"
    # A terminal of its own, so that Ctrl-C reaches this process and no other.
    process = start_process(words, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, env=environ)
    _read_until(outer, "No run there yet")
    tracked_run(folder, steps=2, games=False, MAX_STEPS="9")
    _read_until(outer, "step 2/9")
    add_row(folder, 3)
    _read_until(outer, "step 3/9")
    _resize(inner, 20, 60)
    _read_until(outer, "╭─ alarms " + "─" * (60 - 11) + "╮")
    os.killpg(process.pid, signal.SIGINT)
    # What is still written must be taken, or the process waits for the terminal.
    _read_until(outer, "\x1b[?1049l")
    assert process.wait(_SECONDS) == 0
    os.close(inner)
    os.close(outer)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read_until(terminal: int, wanted: str) -> str:
    text, end = "", time.monotonic() + _SECONDS
    while wanted not in text:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{wanted!r} did not come: {text[-2000:]!r}"
        text += os.read(terminal, 65536).decode("utf-8", "replace")
    return text
