import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.env import HanabiEnv
from hanabi_grpo.envs.hanabi.policies import make_policy
from hanabi_grpo.evaluation import collect as collection
from hanabi_grpo.evaluation.collect import Collection, collect_games, fill_prompts
from hanabi_grpo.evaluation.matches import replay
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.types import Episode
from server_app import running_app

RUNNER = CliRunner()
LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def collect(*words: str) -> Any:
    return RUNNER.invoke(app, ["collect", *words, "--out", "games"])


def episodes() -> list[Episode]:
    found, notes = read_recordings(recording_files(Path("games")))
    assert notes == []
    return [one.episode for one in found]


def about() -> Any:
    return json.loads(Path("games/collection.json").read_text())


def test_games_are_whole_episodes_in_rotating_seats_that_the_viewer_shows() -> None:
    answer = collect("iggi,random", "--preset", "laptop", "--deals", "5", "--games", "3")
    assert answer.exit_code == 0, answer.output
    found = episodes()
    assert [(one.suite, one.seed, one.game) for one in found] == [
        ("collect", deal, game) for deal in range(5) for game in range(3)
    ]
    assert [one.seats for one in found[::3]] == [
        ("iggi", "random") if deal % 2 == 0 else ("random", "iggi") for deal in range(5)
    ]
    assert {replay(one).score for one in found} == {one.score for one in found}
    told = about()
    assert (told["complete"], told["games_done"], told["line_up"]) == (True, 15, "iggi,random")
    assert told["mean_score"] == pytest.approx(sum(one.score for one in found) / 15)
    assert "15 games of 5 deals" in answer.stdout and "games/s" in answer.stdout
    shown = RUNNER.invoke(app, ["view", "games"])
    assert shown.exit_code == 0 and "15 of 15 games" in shown.stdout


@pytest.mark.parametrize("preset", ["laptop", "full"])
def test_prompts_of_scripts_are_those_that_the_environment_shows(preset: str) -> None:
    config = EnvConfig(preset=preset, observation="full", legal_moves=True)
    bare = play_episodes_sync(config, [make_policy("iggi")] * 2, "collect", range(3))
    assert all(turn.prompt == "" for one in bare for turn in one.turns)
    env = HanabiEnv(config)
    for one in bare:
        shown, _ = env.reset(options={"suite": "collect", "seed": one.seed, "game": 0})
        for turn in fill_prompts(one, config).turns:
            assert turn.prompt == shown
            shown, *_ = env.step(turn.reply)


def test_no_prompts_leaves_them_out_and_no_rotate_keeps_the_seats() -> None:
    answer = collect("iggi,random", "--preset", "laptop", "--deals", "4", "--no-prompts", "--no-rotate")
    assert answer.exit_code == 0, answer.output
    assert {turn.prompt for one in episodes() for turn in one.turns} == {""}
    assert {one.seats for one in episodes()} == {("iggi", "random")}


def test_a_held_out_suite_is_played_with_a_warning() -> None:
    answer = collect("blind", "--preset", "laptop", "--deals", "2", "--suite", "eval")
    assert answer.exit_code == 0
    assert "training on these games spoils evaluations" in answer.stderr
    assert "spoils" not in RUNNER.invoke(app, ["collect", "blind", "--preset", "laptop", "--out", "other"]).stderr


def test_the_same_command_again_does_nothing_and_more_deals_are_added() -> None:
    words = ["random", "--preset", "laptop", "--games", "2"]
    assert collect(*words, "--deals", "3").exit_code == 0
    before = Path("games/games_000000.jsonl").read_bytes()
    again = collect(*words, "--deals", "3")
    assert again.exit_code == 0 and "nothing was left to play" in again.stdout
    assert Path("games/games_000000.jsonl").read_bytes() == before
    assert collect(*words, "--deals", "5").exit_code == 0
    assert [(one.seed, one.game) for one in episodes()] == [(deal, game) for deal in range(5) for game in range(2)]


def test_other_games_in_the_folder_are_never_mixed_in() -> None:
    assert collect("iggi", "--preset", "laptop", "--deals", "2").exit_code == 0
    other = collect("iggi", "--preset", "laptop", "--deals", "2", "--games", "2")
    assert other.exit_code == 2 and "games_per_deal: there 1, here 2" in other.stderr
    Path("games/collection.ledger").unlink()
    unknown = collect("iggi", "--preset", "laptop", "--deals", "2")
    assert unknown.exit_code == 2 and "holds other games already" in unknown.stderr
    assert len(episodes()) == 2


def test_a_shard_that_lost_games_is_noticed() -> None:
    words = ["iggi", "--preset", "laptop", "--deals", "3"]
    assert collect(*words).exit_code == 0
    shard = Path("games/games_000000.jsonl")
    shard.write_bytes(shard.read_bytes()[:-10])
    answer = collect(*words)
    assert answer.exit_code == 2 and "bytes are left; it was changed" in answer.stderr


def test_every_cut_of_shards_and_ledger_goes_on_to_the_same_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "SHARD_GAMES", 8)
    monkeypatch.setattr(collection, "_SCRIPTED_GAMES", 4)
    what = Collection(
        line_up=parse_line_up("random,iggi", 2),
        config=LAPTOP,
        suite="collect",
        num_deals=12,
        num_games=2,
        rotate=True,
        prompts=False,
    )
    folder = Path("games")
    collect_games(what, folder)
    shards = sorted(folder.glob("games_*.jsonl"))
    whole = {path: path.read_bytes() for path in shards}
    assert [content.count(b"\n") for content in whole.values()] == [8, 8, 8]
    ledger = folder / "collection.ledger"
    rows = ledger.read_bytes().splitlines(keepends=True)
    assert len(rows) == 7
    for done in range(len(rows)):
        # Killed after the shard was written and before the ledger was, or in the middle of either.
        ledger.write_bytes(b"".join(rows[: done + 1]) + b'{"deals": 1')
        collect_games(what, folder)
        assert {path: path.read_bytes() for path in sorted(folder.glob("games_*.jsonl"))} == whole
        assert ledger.read_bytes() == b"".join(rows)


def test_models_play_beside_scripts_and_everybody_has_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        answer = collect("base,iggi", "--preset", "laptop", "--deals", "6", "--games", "4", "--temperature", "0.5")
    assert answer.exit_code == 0, answer.output
    found = episodes()
    assert [(one.seed, one.game) for one in found] == [(deal, game) for deal in range(6) for game in range(4)]
    for one in found:
        for turn in one.turns:
            assert turn.prompt
            assert bool(turn.reply_ids) == (one.seats[turn.player] == "base")
    assert about()["temperature"] == 0.5
    assert about()["policies"]["base"].startswith("f" * 16)
