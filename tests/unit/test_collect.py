"""`hanabi-grpo collect`: whole episodes in files, interrupted anywhere and continued."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.evaluation import collect as collection
from hanabi_grpo.evaluation import matches
from hanabi_grpo.evaluation.collect import collect_games, fill_prompts
from hanabi_grpo.evaluation.matches import check_replay
from hanabi_grpo.rollout.recordings import read_recordings, recording_files
from hanabi_grpo.types import Episode
from made_games import play_episodes_sync
from toy_kuhn import KUHN
from training_runs import LAPTOP

RUNNER = CliRunner()
FOLDER = Path("games")
ON_LAPTOP = ("--preset", "laptop")


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect(*args: str) -> Result:
    return RUNNER.invoke(app, ["collect", *args, "--out", "games"])


def episodes() -> list[Episode]:
    recordings, notes = read_recordings(recording_files(Path("games")))
    assert notes == []
    return [recording.episode for recording in recordings]


def test_games_are_whole_episodes_in_rotating_seats() -> None:
    answer = collect("iggi,random", *ON_LAPTOP, "--tasks", "5", "--games", "3")
    assert answer.exit_code == 0, answer.output
    assert "15 games of 5 tasks" in answer.stdout
    collected = episodes()
    names = [(episode.suite, episode.seed, episode.game) for episode in collected]
    assert names == [("collect", task, game) for task in range(5) for game in range(3)]
    assert [episode.seats for episode in collected[::3]] == [
        ("iggi", "random"),
        ("random", "iggi"),
        ("iggi", "random"),
        ("random", "iggi"),
        ("iggi", "random"),
    ]


def test_a_collection_says_what_it_holds() -> None:
    assert collect("iggi,random", *ON_LAPTOP, "--tasks", "5", "--games", "3").exit_code == 0
    collection_facts = json.loads(Path("games/collection.json").read_text())
    assert collection_facts["complete"] is True
    assert collection_facts["games_done"] == 15
    assert collection_facts["lineup"] == "iggi,random"
    assert collection_facts["env"] == "hanabi"
    collected = episodes()
    total = sum(episode.result["score"] for episode in collected)
    assert collection_facts["mean_score"] == pytest.approx(total / 15)
    setup = Setup(HANABI, EnvConfig.parse(collection_facts["env_config"]))
    for episode in collected:
        check_replay(setup, episode)


def test_collected_games_are_shown_by_view() -> None:
    assert collect("iggi,random", *ON_LAPTOP, "--tasks", "5", "--games", "3").exit_code == 0
    answer = RUNNER.invoke(app, ["view", "games"])
    assert answer.exit_code == 0
    assert "15 of 15 games" in answer.stdout


@pytest.mark.parametrize(
    ("setup", "script"),
    [
        (LAPTOP, "iggi"),
        (Setup(HANABI, EnvConfig(preset="full")), "piers"),
        (Setup(KUHN, KUHN.presets["kuhn"]), "random"),
    ],
)
def test_prompts_of_scripts_are_those_that_a_model_is_shown(setup: Setup[Any], script: str) -> None:
    scripts = [make_script(setup, script)] * 2
    for episode in play_episodes_sync(setup, scripts, "collect", range(3)):
        assert {turn.prompt for turn in episode.turns} == {""}
        referee = Referee(setup.task("collect", episode.seed))
        for turn in fill_prompts(episode, setup).turns:
            assert turn.prompt == referee.see(turn.player).message()
            referee.step({turn.player: turn.action})


def test_the_same_command_again_does_nothing_and_more_tasks_are_added() -> None:
    args = ["random", *ON_LAPTOP, "--games", "2"]
    first = Path("games/games_000000.jsonl")
    assert collect(*args, "--tasks", "3").exit_code == 0
    before = first.read_bytes()
    assert collect(*args, "--tasks", "3").exit_code == 0
    assert first.read_bytes() == before
    assert collect(*args, "--tasks", "5").exit_code == 0
    names = [(episode.seed, episode.game) for episode in episodes()]
    assert names == [(task, game) for task in range(5) for game in range(2)]


def test_a_folder_with_other_games_is_refused() -> None:
    assert collect("random", *ON_LAPTOP, "--tasks", "5", "--games", "2").exit_code == 0
    other = collect("random", *ON_LAPTOP, "--tasks", "5", "--games", "3")
    assert other.exit_code == 2
    assert "games_per_task: there 2, here 3" in other.stderr
    Path("games/collection.ledger").unlink()
    unknown = collect("random", *ON_LAPTOP, "--tasks", "5", "--games", "2")
    assert unknown.exit_code == 2
    assert "already holds other games" in unknown.stderr


def test_every_cut_of_files_and_ledger_goes_on_to_the_same_games(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collection, "FILE_GAMES", 8)
    monkeypatch.setattr(matches, "SCRIPTED_GAMES", 4)
    play = partial(
        collect_games,
        parse_lineup("random,iggi", 2),
        LAPTOP,
        FOLDER,
        suite="collect",
        num_tasks=12,
        num_games=2,
        rotate=True,
    )
    play()
    whole = {path: path.read_bytes() for path in sorted(FOLDER.glob("games_*.jsonl"))}
    games_of_file = {path.stem: content.count(b"\n") for path, content in whole.items()}
    assert games_of_file == {"games_000000": 8, "games_000004": 8, "games_000008": 8}
    ledger = FOLDER / "collection.ledger"
    rows = ledger.read_bytes().splitlines(keepends=True)
    for num_rows in range(1, len(rows) + 1):
        # Killed after a file was written and before the ledger was, or in the middle of that.
        ledger.write_bytes(b"".join(rows[:num_rows]) + b'{"tasks": 1')
        play()
        assert {path: path.read_bytes() for path in sorted(FOLDER.glob("games_*.jsonl"))} == whole
        assert ledger.read_bytes() == b"".join(rows)
