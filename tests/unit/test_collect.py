"""`hanabi-grpo collect`: whole episodes in files, interrupted anywhere and continued."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

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
from hanabi_grpo.rollout.loop import make_script
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


def collect(*arguments: str) -> Result:
    return RUNNER.invoke(app, ["collect", *arguments, "--out", str(FOLDER)])


def collected_episodes() -> list[Episode]:
    recordings, notes = read_recordings(recording_files(FOLDER))
    assert notes == []
    return [recording.episode for recording in recordings]


def test_games_are_whole_episodes_in_rotating_seats_that_the_viewer_shows() -> None:
    answer = collect("iggi,random", *ON_LAPTOP, "--tasks", "5", "--games", "3")
    assert answer.exit_code == 0, answer.output
    assert "15 games of 5 tasks" in answer.stdout
    episodes = collected_episodes()
    description = json.loads((FOLDER / "collection.json").read_text())
    setup = Setup(HANABI, EnvConfig.parse(description["env_config"]))
    expected = [(task, game) for task in range(5) for game in range(3)]
    assert [(episode.seed, episode.game) for episode in episodes] == expected
    for episode in episodes:
        is_even = episode.seed % 2 == 0
        assert episode.suite == "collect"
        assert episode.seats == (("iggi", "random") if is_even else ("random", "iggi"))
        check_replay(setup, episode)
    assert description["complete"] is True
    assert description["games_done"] == 15
    assert description["lineup"] == "iggi,random"
    assert description["env"] == "hanabi"
    mean_score = sum(episode.result["score"] for episode in episodes) / 15
    assert description["mean_score"] == pytest.approx(mean_score)
    view = RUNNER.invoke(app, ["view", str(FOLDER)])
    assert view.exit_code == 0
    assert "15 of 15 games" in view.stdout


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


def test_the_same_command_again_does_nothing_more_tasks_are_added_and_other_games_refused() -> None:
    arguments = ["random", *ON_LAPTOP, "--games", "2"]
    first_file = FOLDER / "games_000000.jsonl"
    assert collect(*arguments, "--tasks", "3").exit_code == 0
    before = first_file.read_bytes()
    assert collect(*arguments, "--tasks", "3").exit_code == 0
    assert first_file.read_bytes() == before
    assert collect(*arguments, "--tasks", "5").exit_code == 0
    expected = [(task, game) for task in range(5) for game in range(2)]
    assert [(episode.seed, episode.game) for episode in collected_episodes()] == expected
    other = collect("random", *ON_LAPTOP, "--tasks", "5", "--games", "3")
    assert other.exit_code == 2
    assert "games_per_task: there 2, here 3" in other.stderr
    (FOLDER / "collection.ledger").unlink()
    unknown = collect(*arguments, "--tasks", "5")
    assert unknown.exit_code == 2
    assert "holds other games already" in unknown.stderr


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
