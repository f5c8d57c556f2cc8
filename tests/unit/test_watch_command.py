"""`hanabi-grpo watch`: one frame for scripts, a live one on a real terminal, and a server on a real socket."""

import fcntl
import json
import logging
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
from rich.console import Console
from typer.testing import CliRunner

from fake_engine import LAPTOP
from hanabi_grpo.cli import app
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.logs import LineRing
from hanabi_grpo.report.run_views.server_screen import ServerScreen
from hanabi_grpo.report.run_views.server_watch import ServerWatch
from server_app import PEFT_CONFIG, push_to, running_app
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


def test_a_run_that_is_not_there_exits_with_1_and_still_answers(tmp_path: Path) -> None:
    answer = RUNNER.invoke(app, ["watch", str(tmp_path / "none"), "--once"])
    assert (answer.exit_code, "No run there yet" in answer.output) == (1, True)
    answer = RUNNER.invoke(app, ["watch", str(tmp_path / "none"), "--json"])
    assert (answer.exit_code, json.loads(answer.output)["is_there"]) == (1, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either a run folder or --server URL"),
        (["{tmp}", "--server", "http://127.0.0.1:1"], "give either a run folder or --server URL"),
        (["{tmp}/file", "--once"], "is a file; give the folder of a run"),
        (["{tmp}", "--every", "0"], "--every 0.0: must be 0.1 to 3600 seconds"),
        (["{tmp}", "--every", "nan"], "--every nan: must be 0.1 to 3600 seconds"),
        (["--server", "somewhere"], "--server 'somewhere': must be an address"),
        (["--server", "http://[::1"], "must be an address"),
        (["--server", "ftp://host"], "must be an address"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    answer = RUNNER.invoke(app, ["watch", *(word.format(tmp=tmp_path) for word in words)])
    assert answer.exit_code == 2
    assert message in answer.output.replace("\n", " ")


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


def test_a_server_is_watched_with_its_key_and_its_log_gives_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app(api_key="the-key") as server, _logging_to(server.ring):
        with RolloutClient(server.url, api_key="the-key") as trainer:
            bodies = push_to(trainer, server, 1)
            for version in (1, 2):
                if version > 1:
                    trainer.push(version, {name: (body, PEFT_CONFIG) for name, body in bodies.items()})
                deals = [
                    {"env_config": LAPTOP.model_dump(mode="json"), "suite": "train", "seed": one} for one in (0, 1)
                ]
                seats = [f"player_0@{version}", f"player_1@{version}"]
                played = trainer.play(deals, num_games=3, max_tokens=8, temperature=1.0, seats=seats)
                held_out = [{**deals[0], "suite": "eval"}]
                trainer.play(held_out, num_games=2, max_tokens=8, temperature=1.0, seats=seats)
                games = [game for group in played.groups for game in group]
            monkeypatch.setenv("HANABI_API_KEY", "the-key")
            answer = RUNNER.invoke(app, ["watch", "--server", f"{server.url}/", "--json"])
            assert answer.exit_code == 0, answer.output
            data = json.loads(answer.output)
            assert [version for version, _ in data["curve"]] == [1, 2]
            # The log has two decimals of each deal's mean.
            assert data["curve"][1][1] == pytest.approx(sum(game.score for game in games) / 6, abs=0.01)
            assert data["health"]["games_played"] == 16
            text = RUNNER.invoke(app, ["watch", "--server", server.url, "--once"]).output
            assert "player_0@2, player_1@2" in text and "score of training games by version" in text
            assert "the-key" not in text + answer.output
        monkeypatch.setenv("HANABI_API_KEY", "another")
        refused = RUNNER.invoke(app, ["watch", "--server", server.url, "--once"])
        assert (refused.exit_code, "401" in refused.output) == (2, True)


def test_a_server_that_goes_and_another_that_comes_are_both_followed() -> None:
    with running_app() as first, _logging_to(first.ring):
        logging.getLogger("hanabi_grpo").info("line of the first")
        port = first.port
        watch = ServerWatch(RolloutClient(first.url))
        state = watch.look()
        assert (state.problem, state.lines[-1]) == ("", "line of the first")
        assert watch.look().lines == state.lines
    gone = watch.look()
    assert "Is the rollout server running?" in gone.problem
    assert gone.health["instance_id"] == "test-instance"
    console = Console(width=80, record=True)
    console.print(ServerScreen(gone))
    assert "Is the rollout server running?" in " ".join(console.export_text().split())
    with running_app(port=port, instance_id="second") as second, _logging_to(second.ring):
        logging.getLogger("hanabi_grpo").info("line of the second")
        assert watch.look().lines[-1] == "line of the second"
    watch.client.close()


def test_a_wrong_key_is_an_error_and_not_a_server_that_is_waited_for() -> None:
    with (
        running_app(api_key="k") as server,
        RolloutClient(server.url, api_key="wrong") as client,
        pytest.raises(ServerError, match="401"),
    ):
        ServerWatch(client).look()


class _logging_to:
    """Sends the package's log to the ring that the server shows, as `serve` does."""

    def __init__(self, ring: LineRing) -> None:
        self.ring, self.logger = ring, logging.getLogger("hanabi_grpo")

    def __enter__(self) -> None:
        self.level = self.logger.level
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(self.ring)

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self.ring)
        self.logger.setLevel(self.level)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read_until(terminal: int, wanted: str) -> str:
    text, end = "", time.monotonic() + _SECONDS
    while wanted not in text:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"{wanted!r} did not come: {text[-2000:]!r}"
        text += os.read(terminal, 65536).decode("utf-8", "replace")
    return text
