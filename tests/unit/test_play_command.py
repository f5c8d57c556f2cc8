"""`hanabi-grpo play`: whole games, games that were left, and options that do not fit."""

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
from hanabi_grpo.commands.play import read_game
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import read_recordings
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import Episode, ReplyKind
from server_app import RunningApp, WordEngine, running_app

RUNNER = CliRunner()
MOVES = ["h1", "p0", "d0", "h2", "p1", "hr", "p0", "hy", "d1", "p2", "h1", "d0"] * 20
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


def test_a_whole_game_is_shown_scored_and_written_for_view() -> None:
    result = play("random", "--preset", "marshal-mini", "--seed", "4", "--out", "games/one.jsonl")
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("games/one.jsonl"))
    assert (episode.suite, episode.seed, episode.seats) == ("human", 4, ("human", "random"))
    assert {turn.kind for turn in episode.turns} == {ReplyKind.LEGAL}
    assert os.listdir("games") == ["one.jsonl"]
    assert f"Score: {episode.score} of 4, " in result.output
    assert "Your last cards: " in result.output
    assert result.output.endswith("wrote games/one.jsonl\nwatch it: hanabi-grpo view games/one.jsonl\n")
    watched = RUNNER.invoke(app, ["view", "games/one.jsonl"])
    assert watched.exit_code == 0 and "deal human/4" in watched.output


def test_without_out_the_game_gets_a_file_of_its_own_and_its_seed_is_told() -> None:
    result = play("--preset", "laptop")
    [path] = Path("outputs/played").iterdir()
    seed = episode_of(path).seed
    assert path.name.endswith(f"-laptop-{seed}.jsonl")
    assert f"deal human/{seed}" in result.output and "with you play player_1 iggi" in " ".join(result.output.split())


def test_a_bomb_tells_both_scorings() -> None:
    # Playing blindly loses the one life sooner or later.
    outputs = [
        play("hint-bot", "--preset", "laptop", "--seed", str(seed), "--out", f"{seed}.jsonl", moves=["p0"] * 20).output
        for seed in range(6)
    ]
    told = [output for output in outputs if "A lost last life takes every point: 0." in output]
    assert told and all("bombed" in output for output in told)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["igi"], "Did you mean 'iggi'?"),
        (["human"], "one person and at least one partner"),
        (["human,human"], "one person and at least one partner"),
        (["human,iggi", "--seat", "player_1"], "names your seat already"),
        (["human,iggi", "--players", "3"], "for 3 players: give one word for every partner"),
        (["iggi,piers", "--players", "2"], "for 2 players: give one word for every partner"),
        (["iggi", "--players", "1"], "Hanabi needs 2 to 5 players"),
        (["iggi", "--players", "-3"], "Hanabi needs 2 to 5 players"),
        (["iggi", "--players", "0"], "Hanabi needs 2 to 5 players"),
        (["iggi", "--players", "6"], "Hanabi needs 2 to 5 players"),
        (["iggi", "--seat", "player_2"], "the players are player_0 to player_1"),
        (["iggi", "--seat", "me"], "the players are player_0 to player_1"),
        (["iggi", "--preset", "fulll"], "did you mean 'full'"),
        (["iggi", "--seed", "-1"], "--seed -1: a deal's seed"),
        (["iggi", "--temperature", "nan"], "--temperature nan: must be 0 (greedy) or more"),
        (["iggi", "--out", "there.jsonl"], "there.jsonl: exists already"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_a_move(options: list[str], message: str) -> None:
    Path("there.jsonl").write_text("{}")
    before = {path.name: path.read_text() for path in Path().iterdir()}
    result = play(*options)
    assert result.exit_code == 2 and message in result.stderr
    assert "Traceback" not in result.output
    assert {path.name: path.read_text() for path in Path().iterdir()} == before


def test_bytes_that_are_no_text_are_a_line_like_any_other() -> None:
    result = RUNNER.invoke(app, ["play", "--preset", "laptop", "--out", "a.jsonl"], input=b"\xff\xfe\x00p0\nh1\nq\n")
    assert result.exit_code == 130 and "That is no move." in result.output
    assert result.output.endswith("You left; the game is not kept.\n") and not Path("a.jsonl").exists()


@pytest.mark.parametrize(
    ("partners", "seat", "players", "words"),
    [
        ("iggi", None, None, ("human", "iggi")),
        ("iggi", "player_1", None, ("iggi", "human")),
        ("iggi", "2", 3, ("iggi", "iggi", "human")),
        ("iggi,piers", "player_1", None, ("iggi", "human", "piers")),
        (" iggi , human , blind ", None, None, ("iggi", "human", "blind")),
    ],
)
def test_partners_fill_the_seats_around_the_person(
    partners: str, seat: str | None, players: int | None, words: tuple[str, ...]
) -> None:
    found, config = read_game(partners, seat, None, players, Settings())
    assert (found, config.players, config.preset) == (words, len(words), "full")


def test_a_table_that_no_board_seats_is_refused() -> None:
    with pytest.raises(SettingsError, match="laptop"):
        read_game("iggi,iggi", None, "laptop", None, Settings())


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
    screen.wait_for("Your move")
    screen.type("h1\r")
    screen.wait_for("Your move", count=2)
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
    result = play("base", "--preset", "laptop", "--seed", "2", "--out", "a.jsonl", moves=["h1", "h2", *["p0"] * 20])
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("a.jsonl"))
    assert episode.seats == ("human", "base")
    own = episode.trajectory(1)
    assert len(own) >= 2 and all(turn.reply_ids and turn.prompt_ids for turn in own)


class _FailingEngine(WordEngine):
    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Sample:
        raise RuntimeError("planted")


def test_a_server_that_fails_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app(engine=_FailingEngine()) as running:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(running.port))
        result = play("base", "--preset", "laptop", "--seed", "2", "--out", "a.jsonl", moves=["h1", "h2"])
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and "Traceback" not in result.output
