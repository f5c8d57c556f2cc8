"""`hanabi-grpo play`: whole games of two environments, games that were left, and options that do not fit."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.runs.recordings import read_recordings
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.types import Episode, ReplyKind
from server_app import RunningApp, WordEngine, running_app

RUNNER = CliRunner()
MOVES = ["Hint 1", "Play 0", "Discard 0", "Hint 2", "Play 1", "Hint R", "Play 0", "Hint Y", "Discard 1", "Play 2"] * 20
"""More than any laptop game takes; a move that is not legal is asked for again."""
NEVER_ENDING = 60
"""Seconds after which a test gives up."""


def play(*options: str, moves: Sequence[str] = MOVES) -> Result:
    return RUNNER.invoke(app, ["play", *options], input="".join(f"{move}\n" for move in moves))


def episode_of(path: Path) -> Episode:
    [recording], notes = read_recordings([path])
    assert notes == []
    return recording.episode


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_whole_game_is_shown_and_written_for_view() -> None:
    result = play("random", "--preset", "marshal-mini", "--seed", "4", "--out", "games/one.jsonl")
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("games/one.jsonl"))
    assert (episode.suite, episode.seed, episode.seats) == ("human", 4, ("human", "random"))
    assert {turn.kind for turn in episode.turns} == {ReplyKind.LEGAL}
    assert all(turn.prompt in result.output.replace("\n", " ") for turn in episode.trajectory(0))
    score = f"{episode.result['score']:g}"
    assert f"The game is over ({episode.status}): score {score}, " in result.output
    assert result.output.endswith("wrote games/one.jsonl\nwatch it: hanabi-grpo view games/one.jsonl\n")
    assert RUNNER.invoke(app, ["view", "games/one.jsonl"]).exit_code == 0


def test_a_person_plays_any_environment_and_is_asked_until_a_reply_is_legal() -> None:
    replies = ["l", "raise", "fold", "**Check**", "fold", "call"]
    result = play("random,human", "--env", "kuhn", "--seed", "1", "--out", "a.jsonl", moves=["l", "raise", *replies])
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("a.jsonl"))
    assert (episode.env, episode.seats) == ("kuhn", ("random", "human"))
    assert {turn.kind for turn in episode.turns} == {ReplyKind.LEGAL}
    said = result.output
    assert said.count("You are the second player in a game of Kuhn poker.") == 1
    assert "That names no action." in said
    assert f"your return {episode.reward(1):g}" in said
    assert play("--env", "kuhn", moves=["bet", "call"]).exit_code == 0
    [path] = Path("outputs/played").iterdir()
    assert path.name.endswith(f"-kuhn-{episode_of(path).seed}.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["igi"], "Did you mean 'iggi'?"),
        (["human"], "for 2 players: give one word for every partner"),
        (["human,human"], "for 2 players: give one word for every partner"),
        (["human,iggi", "--preset", "mini", "--players", "3"], "for 3 players: give one word for every partner"),
        (["iggi,piers"], "for 2 players: give one word for every partner"),
        (["iggi", "--players", "6"], "Hanabi needs 2 to 5 players"),
        (["iggi", "--preset", "fulll"], "did you mean 'full'"),
        (["iggi", "--env", "kuhn"], "iggi"),
        (["iggi", "--env", "khun"], "did you mean 'kuhn'"),
        (["iggi", "--seed", "-1"], "--seed -1: a start's seed"),
        (["iggi", "--temperature", "nan"], "--temperature nan: must be 0 (greedy) or more"),
        (["iggi", "--out", "there.jsonl"], "there.jsonl: exists already"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_a_move(options: list[str], message: str) -> None:
    Path("there.jsonl").write_text("{}")
    result = play(*options)
    assert result.exit_code == 2 and message in result.stderr
    assert "Traceback" not in result.output
    assert [path.name for path in Path().iterdir()] == ["there.jsonl"]


def test_bytes_that_are_no_text_are_a_line_like_any_other() -> None:
    result = RUNNER.invoke(app, ["play", "--out", "a.jsonl"], input=b"\xff\xfe\x00p0\nh1\nq\n")
    assert result.exit_code == 130 and "That names no action." in result.output
    assert result.output.endswith("You left; the game is not kept.\n") and not Path("a.jsonl").exists()


class Terminal:
    """The command in a pseudo-terminal."""

    def __init__(self, start: Callable[..., "subprocess.Popen[str]"], *options: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "hanabi_grpo.cli", "play", *options]
        # A session of its own, so that the terminal is the process's and Ctrl-C reaches it.
        self.process = start(
            [sys.executable, "-c", _CONTROLLED, *command], stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self, answer: str) -> None:
        """Press Ctrl-C until it is answered: one that comes just before `input` waits is seen only at the next key."""
        deadline = time.monotonic() + NEVER_ENDING
        while not self._comes(answer, 3):
            assert time.monotonic() < deadline, f"{answer!r} did not come; seen: {self.seen}"
            self.type("\x03")

    def wait_for(self, text: str, count: int = 1) -> None:
        assert self._comes(text, NEVER_ENDING, count), f"{text!r} did not come; seen: {self.seen}"

    def _comes(self, text: str, seconds: float, count: int = 1) -> bool:
        deadline = time.monotonic() + seconds
        while self.seen.count(text) < count:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            with contextlib.suppress(OSError):
                self.seen += os.read(self._ours, 65536).decode("utf-8", "replace")
            if time.monotonic() > deadline:
                return False
        return True

    def close(self) -> None:
        os.close(self._ours)


_CONTROLLED = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def terminal(start_process: Callable[..., "subprocess.Popen[str]"]) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*options: str) -> Terminal:
        opened.append(Terminal(start_process, *options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_ctrl_c_at_a_terminal_ends_the_game_in_one_line(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("iggi", "--preset", "laptop", "--seed", "1", "--out", "a.jsonl")
    screen.wait_for("Your reply")
    screen.type("Hint 1\r")
    screen.wait_for("Your reply", count=2)
    screen.type("p\x03")
    screen.interrupt("the game is not kept")
    assert screen.process.wait(NEVER_ENDING) == 130
    assert "Traceback" not in screen.seen


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningApp]:
    with running_app() as running:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(running.port))
        yield running


def test_a_model_may_be_the_partner(server: RunningApp) -> None:
    result = play("base", "--seed", "2", "--out", "a.jsonl")
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("a.jsonl"))
    assert episode.seats == ("human", "base")
    own = episode.trajectory(1)
    assert own and all(turn.reply_ids and turn.prompt_ids for turn in own)


class _FailingEngine(WordEngine):
    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Sample:
        raise RuntimeError("planted")


def test_a_server_that_fails_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app(engine=_FailingEngine()) as running:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(running.port))
        result = play("base", "--seed", "2", "--out", "a.jsonl")
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and "Traceback" not in result.output
