"""`hanabi-grpo play`: whole games, games that were left, and options that do not fit."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from boards import scripted_episodes
from fake_engine import CHAT, LAPTOP
from hanabi_grpo.cli import app
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.rollout.recordings import read_recordings
from hanabi_grpo.rollout.sampler import Sample, SamplingConfig
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.types import Episode, ReplyKind
from server_app import WordEngine, running_app

RUNNER = CliRunner()
MOVES = [
    "Hint 1",
    "Play 0",
    "Discard 0",
    "Hint 2",
    "Play 1",
    "Hint R",
    "Play 0",
    "Hint Y",
    "Discard 1",
    "Play 2",
] * 20
"""More than any laptop game takes; a move that is not legal is asked for again."""


def play(*options: str, moves: Sequence[str] = MOVES) -> Result:
    """Run the command for a person who types these moves."""
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
    assert episode.suite == "human"
    assert episode.seed == 4
    assert episode.seats == ("human", "random")
    assert {turn.kind for turn in episode.turns} == {ReplyKind.LEGAL}
    # A record has what a model would have read; the person has read a table.
    for turn in episode.trajectory(0):
        assert turn.prompt
        assert turn.prompt not in result.output
    score = f"{episode.result['score']:g}"
    assert f"The game is over. Your team scored {score} of " in result.output
    assert f"({episode.status}: score {score}, " in result.output
    assert result.output.endswith(
        "wrote games/one.jsonl\nwatch it: hanabi-grpo view games/one.jsonl\n"
    )
    assert RUNNER.invoke(app, ["view", "games/one.jsonl"]).exit_code == 0


def test_the_task_is_named_only_when_the_game_is_over() -> None:
    # Whoever knows the number can compute the hidden cards.
    result = play("random", "--preset", "marshal-mini", "--seed", "73911", "--out", "a.jsonl")
    assert result.exit_code == 0, result.output
    during, _, after = result.output.partition("The game is over.")
    assert "hanabi, marshal-mini; you play with player_1 random." in during
    assert "73911" not in during
    assert "; start human/73911)" in after


def test_a_person_is_asked_until_a_reply_is_legal() -> None:
    moves = ["l", "raise", "l", "raise", "fold", "**Check**", "fold", "call"]
    result = play("random,human", "--env", "kuhn", "--seed", "1", "--out", "a.jsonl", moves=moves)
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("a.jsonl"))
    assert episode.env == "kuhn"
    assert episode.seats == ("random", "human")
    assert {turn.kind for turn in episode.turns} == {ReplyKind.LEGAL}
    assert result.output.count("You are the second player in a game of Kuhn poker.") == 1
    assert "That is not an action." in result.output
    assert f"your return {episode.reward(1):g}" in result.output


def test_games_of_a_person_are_what_a_warm_start_learns_from() -> None:
    """The person types what the hint bot would do: its games give the same samples."""
    expected = []
    for seed in range(3):
        [game] = scripted_episodes(LAPTOP, ["hint-bot"] * 2, [seed], suite="human")
        expected.append(game)
        moves = [turn.action for turn in game.trajectory(0)]
        # One is played with other words, the others with those of the model.
        style = ["--set", "HANABI_OBSERVATION=full"] if seed == 1 else []
        options = ["--preset", "laptop", "--seed", str(seed), "--out", f"played/{seed}.jsonl"]
        result = RUNNER.invoke(
            app, ["play", "hint-bot", *options, *style], input="\n".join(moves) + "\n"
        )
        assert result.exit_code == 0, result.output
        played = episode_of(Path(f"played/{seed}.jsonl"))
        assert played.result == game.result
    encoder = Encoder(
        setup=Setup(HANABI, LAPTOP), chat=CHAT, max_model_len=1024, max_completion_length=4
    )
    sources = Sources(paths=(Path("played"),), num_tasks=1, noise=0.0, who="human")
    samples = []
    for of_game in sources.samples(encoder, seed=0, say=print):
        samples += of_game
    wanted = []
    for game in expected:
        is_taught = [turn.player == 0 for turn in game.turns]
        wanted += encoder.samples(Recording(episode=game), is_taught)
    assert samples == wanted
    assert len(samples) == 3


def test_a_game_without_out_is_written_to_the_folder_of_played_games() -> None:
    assert play("--env", "kuhn", moves=["bet", "call"]).exit_code == 0
    [path] = Path("outputs/played").iterdir()
    assert path.name.endswith(f"-kuhn-{episode_of(path).seed}.jsonl")


def test_a_game_without_out_is_written_below_output_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPUT_DIR", "runs/a")
    assert play("--env", "kuhn", moves=["bet", "call"]).exit_code == 0
    [path] = Path("runs/a/played").iterdir()
    assert path.name.endswith(f"-kuhn-{episode_of(path).seed}.jsonl")
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("options", "moves", "shown"),
    [
        (
            ["--env", "frozen_lake", "--seed", "3"],
            ["2", "right"] * 20,
            ["You walk on a frozen lake.", "P F F F"],
        ),
        (["--env", "sokoban"], ["Left"] * 40, ["# wall, . goal, $ box", "Moves 0 of "]),
        (
            ["--env", "tic_tac_toe", "--seed", "1"],
            list("123456789") * 9,
            ["You are X. An empty cell shows its number.", "Moves:  1  2  3", "player_1 chose"],
        ),
        (["--env", "leduc_poker"], ["call", "raise", "2"] * 9, ["Your card is ", "Moves:  [1]"]),
        (["--env", "debate"], ["7", "Answer: 8"], ["Another player answered:", "Type your"]),
        (
            ["--env", "openspiel:breakthrough", "--seed", "1"],
            ["1"] * 200,
            ["8bbbbbbbb", "player_1 chose"],
        ),
    ],
)
def test_every_game_is_shown_in_english_whatever_its_models_read(
    options: list[str], moves: list[str], shown: list[str]
) -> None:
    result = play(*options, moves=moves)
    assert result.exit_code == 0, result.output
    for text in shown:
        assert text in result.output
    assert "End your reply" not in result.output
    assert "The game is over. " in result.output
    # Without the line of the game and the path of the record, which are for copying.
    _, *lines = result.output.partition("The game is over")[0].replace(": ", ":\n").splitlines()
    assert max(map(len, lines)) < 80


def test_the_only_player_of_a_game_may_be_named() -> None:
    result = play("human", "--env", "frozen_lake", "--seed", "3", moves=["2", "right"] * 20)
    assert result.exit_code == 0, result.output
    assert "frozen_lake, frozen_lake; you play with nobody." in result.output


def test_raw_shows_what_a_model_reads() -> None:
    result = play("--env", "frozen_lake", "--seed", "3", "--raw", moves=["Down", "Right"] * 20)
    assert result.exit_code == 0, result.output
    assert "00P 01F" in result.output
    assert "P F F F" not in result.output


def test_a_person_reads_what_the_partner_did_and_how_the_game_ended() -> None:
    moves = ["hint red", "r", "play slot 7", "Hint player_1 rank 1", "99", "1", "1"] * 9
    result = play("random", "--preset", "laptop", "--seed", "3", moves=moves)
    assert result.exit_code == 0, result.output
    assert "You hinted red to player_1: slot 0." in result.output
    assert "- player_1 " in result.output
    assert (
        "That is not an action. Type an action, e.g. Play 0, or its number, 1 to" in result.output
    )
    words = " ".join(result.output.split())
    assert words.count("You see everybody's cards except your own.") >= 2, "r shows the rules"
    [path] = Path("outputs/played").iterdir()
    for turn in episode_of(path).trajectory(0):
        assert turn.reply == turn.action, "as a model of this config writes it"
        for card in ("R1", "R2", "Y1", "Y2"):
            assert f"you         {card}" not in result.output, turn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["igi"], "Did you mean 'iggi'?"),
        (["human,human"], "for 2 players: give one policy for all partners"),
        (
            ["human,iggi", "--preset", "mini", "--players", "3"],
            "for 3 players: give one policy for all partners",
        ),
        (["iggi", "--env", "kuhn"], "iggi"),
        (
            ["bfs", "--env", "frozen_lake"],
            "lineup 'bfs': frozen_lake has one player, which is you; omit the lineup. To watch a "
            "policy play: hanabi-grpo collect bfs --env frozen_lake --preset frozen_lake --tasks 4",
        ),
        (["base", "--env", "vote", "--players", "1"], "--preset vote --players 1 --tasks 4 --out"),
        (["iggi", "--seed", "-1"], "Invalid value for '--seed'"),
        (["iggi", "--temperature", "nan"], "--temperature nan: must be 0 (greedy) or more"),
        (["iggi", "--out", "there.jsonl"], "there.jsonl: already exists"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_move(
    options: list[str], message: str
) -> None:
    Path("there.jsonl").write_text("{}")
    result = play(*options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert [path.name for path in Path().iterdir()] == ["there.jsonl"]


def test_bytes_that_are_no_text_are_a_line_like_any_other() -> None:
    result = RUNNER.invoke(app, ["play", "--out", "a.jsonl"], input=b"\xff\xfe\x00p0\nh1\nq\n")
    assert result.exit_code == 130
    assert "That is not an action." in result.output
    assert result.output.endswith("You quit; the game was not saved.\n")
    assert not Path("a.jsonl").exists()


def test_ctrl_c_ends_the_game_in_one_line(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    process = start_process(
        [
            sys.executable,
            "-m",
            "hanabi_grpo.cli",
            "play",
            "iggi",
            "--preset",
            "laptop",
            "--seed",
            "1",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = ""
    while "Your move" not in output:
        character = process.stdout.read(1)
        assert character, output
        output += character
    # A signal that comes just before `input` waits is seen only at the next line.
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
    rest = process.stdout.read()
    assert process.returncode == 130
    assert "You quit; the game was not saved." in rest
    assert "Traceback" not in rest


def test_a_model_may_be_the_partner(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app() as running:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(running.port))
        result = play("base", "--seed", "2", "--out", "a.jsonl")
    assert result.exit_code == 0, result.output
    episode = episode_of(Path("a.jsonl"))
    assert episode.seats == ("human", "base")
    model_turns = episode.trajectory(1)
    assert model_turns
    for turn in model_turns:
        assert turn.prompt_ids
        assert turn.reply_ids


class FailingEngine(WordEngine):
    """An engine that answers nothing."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingConfig, adapter: Any | None, *game: Any
    ) -> Sample:
        raise RuntimeError("planted")


def test_a_server_that_fails_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app(engine=FailingEngine()) as running:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(running.port))
        result = play("base", "--seed", "2", "--out", "b.jsonl")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


def test_a_command_without_a_server_names_own_server_where_the_wait_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_SERVER_PORT", "9")
    monkeypatch.setenv("HANABI_SERVER_TIMEOUT", "1")
    for command in (["play", "base"], ["evaluate", "base", "--tasks", "2"]):
        result = RUNNER.invoke(app, command)
        assert result.exit_code != 0
        first_lines = result.stdout.split("waiting for the rollout server")[1]
        assert "Or repeat this command with --own-server, and it starts" in first_lines
        # The wait is over by then, so there is nothing to interrupt.
        assert "Ctrl-C" not in result.stderr


def test_web_begins_a_game_on_the_page_and_writes_it_when_it_is_over(
    start_process: Callable[..., "subprocess.Popen[str]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_app() as running:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(running.port))
        process = start_process(
            [
                *(sys.executable, "-m", "hanabi_grpo.cli", "play", "base", "--web"),
                *("--seed", "73911", "--preset", "laptop", "--out", "page.jsonl"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        line = ""
        during = ""
        while not line.startswith("play here: "):
            line = process.stdout.readline()
            assert line
            during += line
        address, _, token = line.removeprefix("play here: ").strip().partition("#")
        assert address == f"{running.url}/play/"

        def ask(path: str, **body: Any) -> dict[str, Any]:
            answer = httpx.post(
                f"{address}{path}", json={"token": token, **body}, trust_env=False, timeout=30
            )
            assert answer.status_code == 200, answer.text
            state: dict[str, Any] = answer.json()
            return state

        state = ask("state")
        while state["status"] != "over":
            if state["status"] == "waiting":
                state = ask("state", after=state["number"])
            else:
                state = ask("move", number=state["number"], move="1")
        output = process.stdout.read()
        assert process.wait(30) == 0, output
    during += output.partition("The game is over.")[0]
    assert "73911" not in during, "the number reveals the hidden cards"
    assert f"The game is over. {state['outcome']} (start human/73911)" in output
    episode = episode_of(Path("page.jsonl"))
    assert episode.seats == ("human", "base")
    assert episode.seed == 73911


def test_options_of_the_page_that_do_not_fit_are_refused() -> None:
    for options, message in (
        (["--open"], "--open: opens the page of --web"),
        (["--raw", "--web"], "--raw and --web"),
    ):
        result = play("random", *options)
        assert result.exit_code == 2
        assert message in result.stderr
