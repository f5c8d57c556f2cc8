"""What is uploaded as an artifact, which checkpoint is the best, and what the run remembers."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.recordings import read_recordings, spread, write_episodes
from hanabi_grpo.runs.evaluation_result import result_to_json, write_document
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking.artifact import build_artifact, write_sample_games
from hanabi_grpo.tracking.record import (
    ArtifactRecord,
    RunningScore,
    WandbRecord,
    is_best,
    read_record,
    running_score,
    write_record,
)
from hanabi_grpo.types import Episode
from tracked_runs import PLAYERS, SECRET, add_checkpoint, scripted_games, tracked_run
from training_runs import LAPTOP as SETUP
from training_runs import evaluate_scripted


def files(folder: Path) -> set[str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix() for path in paths}


def rows(scores: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of metrics with these scores, from step 1."""
    numbered = enumerate(scores, start=1)
    return [{"step": step, "games": 1.0, "score/mean": score} for step, score in numbered]


def score_at(step: int, mean: float, num_steps: int = 10) -> RunningScore:
    return RunningScore(step=step, mean=mean, standard_error=0.1, num_steps=num_steps)


def test_the_best_beats_all_earlier_ones() -> None:
    assert is_best(score_at(20, 2.0), [score_at(10, 1.9)])
    assert not is_best(score_at(20, 2.0), [score_at(10, 2.0)])
    assert not is_best(None, [])


def test_few_lucky_steps_never_beat_ten() -> None:
    lucky = score_at(3, 4.0, num_steps=3)
    assert is_best(score_at(20, 1.0), [lucky])
    assert not is_best(lucky, [score_at(20, 1.0)])
    assert is_best(score_at(3, 0.0, num_steps=3), [])


def test_a_checkpoint_that_is_made_again_after_a_resume_does_not_compete_with_itself() -> None:
    assert is_best(score_at(20, 2.0), [score_at(20, 2.5), score_at(10, 1.0)])


def test_an_artifact_holds_adapters_card_settings_and_evaluations_but_no_optimizer_and_no_key(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "run", steps=12, HANABI_PRESET="laptop")
    checkpoint = add_checkpoint(run, 12)
    write_document(run / "evaluation.json", result_to_json(evaluate_scripted("random", SETUP, 3)))
    (run / "evaluation-torn.json").write_text('{"mean": 1')
    settings = read_settings(run / "settings.json", {"HANABI_API_KEY": SECRET})
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == SECRET
    score = running_score(rows([9.0, 9.0, *([1.0, 2.0] * 5), 9.0]), 12)
    folder, metadata = build_artifact(run, checkpoint, settings, score)
    assert folder == run / "artifacts/step_12"
    assert files(folder) == {
        "README.md",
        "manifest.json",
        "settings.json",
        "training_score.json",
        "player_0/adapter_config.json",
        "player_0/adapter_model.safetensors",
        "player_1/adapter_config.json",
        "player_1/adapter_model.safetensors",
        "episodes/step_000012.jsonl",
        "evaluation/evaluation.json",
    }
    for name in files(folder):
        assert SECRET.encode() not in (folder / name).read_bytes(), name
    assert SECRET not in json.dumps(metadata)
    expected = {
        "step": 12,
        "players": 2,
        "adapters": list(PLAYERS),
        "base_model": "models/tiny",
        "rank": 8,
        "env": "hanabi",
        "preset": "laptop",
        "spec_hashes": ["2beb8aa616bb"],
        "score": 1.5,
        # Ten values of 1 and 2: deviation sqrt(10 * 0.25 / 9), over sqrt(10).
        "score_se": pytest.approx((2.5 / 9) ** 0.5 / 10**0.5),
        "score_steps": 10,
    }
    assert {key: metadata[key] for key in expected} == expected
    commit = metadata["commit"]
    assert commit is None or len(commit.removesuffix("+changes")) == 40
    card = (folder / "README.md").read_text()
    assert "1.50 ± 0.17 over 10 steps" in card
    assert "evaluation.json" in card
    assert "is not an evaluation" in " ".join(card.split())


def test_an_artifact_of_another_environment_names_it(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", games=False, HANABI_ENV="kuhn")
    settings = read_settings(run / "settings.json")
    player = make_script(settings.setup(), "random")
    task = settings.setup().task("train", 3)
    group = [
        asyncio.run(play_episode(task, [player, player], game=0)),
        asyncio.run(play_episode(task, [player, player], game=1)),
    ]
    write_episodes(run, 3, [group])
    folder, metadata = build_artifact(run, add_checkpoint(run, 3), settings, None)
    assert (metadata["env"], metadata["preset"], metadata["players"]) == ("kuhn", "kuhn", 2)
    assert "# Players of kuhn" in (folder / "README.md").read_text()
    games, _ = read_recordings([folder / "episodes/step_000003.jsonl"])
    episodes = [game.episode for game in games]
    assert [(episode.env, episode.seed, episode.game) for episode in episodes] == [
        ("kuhn", 3, 0),
        ("kuhn", 3, 1),
    ]


def test_an_artifact_is_made_anew_whole_and_names_no_folder(tmp_path: Path) -> None:
    model = tmp_path / "home-of-somebody" / "tiny"
    model.mkdir(parents=True)
    run = tracked_run(tmp_path / "run", MODEL=str(model))
    settings = read_settings(run / "settings.json")
    checkpoint = add_checkpoint(run, 3)
    leftover = run / "artifacts/.step_3.partial"
    leftover.mkdir(parents=True)
    (leftover / "rest").write_text("of a killed process")
    first, _ = build_artifact(run, checkpoint, settings, None)
    again, metadata = build_artifact(run, checkpoint, settings, None)
    assert again == first
    assert metadata["base_model"] == "tiny"
    assert "home-of-somebody" not in (first / "README.md").read_text()
    assert [path.name for path in (run / "artifacts").iterdir()] == ["step_3"]


def test_a_damaged_checkpoint_becomes_no_artifact(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", games=False)
    settings = read_settings(run / "settings.json")
    checkpoint = add_checkpoint(run, 4)
    (checkpoint / "player_0/adapter_model.safetensors").write_bytes(b"player_X at 4")
    with pytest.raises(RunFolderError, match=r"player_0/adapter_model\.safetensors has sha256"):
        build_artifact(run, checkpoint, settings, None)


def test_an_artifact_outlives_its_checkpoint(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", games=False)
    checkpoint = add_checkpoint(run, 3)
    folder, _ = build_artifact(run, checkpoint, read_settings(run / "settings.json"), None)
    shutil.rmtree(checkpoint)
    assert (folder / "player_1/adapter_model.safetensors").read_bytes() == b"player_1 at 3"
    assert newest_checkpoint(folder) == folder


def test_an_alias_belongs_to_one_artifact_and_the_same_step_keeps_its_own() -> None:
    def artifact(step: int, *aliases: str) -> ArtifactRecord:
        return ArtifactRecord(
            step=step,
            name="n",
            aliases=list(aliases),
            folder=f"artifacts/step_{step}",
            mode="online",
        )

    record = WandbRecord(id="abcd1234")
    record.add(artifact(10, "checkpoint_global_step_10", "best"))
    record.add(artifact(20, "checkpoint_global_step_20", "best"))
    record.add(artifact(20, "checkpoint_global_step_20", "latest", "end"))
    assert {artifact.step: artifact.aliases for artifact in record.artifacts} == {
        10: ["checkpoint_global_step_10"],
        20: ["checkpoint_global_step_20", "best", "latest", "end"],
    }


def test_a_damaged_record_is_a_new_run_and_a_whole_one_keeps_its_id(tmp_path: Path) -> None:
    for text in ("", "[]", '{"id": 3}', '{"id": "../../x"}', "\xff", '{"id": "abcd"', "[" * 5000):
        (tmp_path / "wandb.json").write_bytes(text.encode("latin-1"))
        fresh = read_record(tmp_path)
        assert len(fresh.id) == 12
        assert fresh.id.isalnum()
        write_record(tmp_path, fresh)
        assert read_record(tmp_path) == fresh


def with_token_ids(episode: Episode) -> Episode:
    """The same game with some token ids and logprobs in each turn."""
    turns = []
    for turn in episode.turns:
        turns.append(replace(turn, prompt_ids=(1, 2), reply_ids=(3,), logprobs=(-0.5,)))
    return replace(episode, turns=tuple(turns))


def recorded_run(folder: Path, *steps: int) -> Path:
    """Write a run whose recorded steps have 6 tasks of 3 games, with token ids."""
    folder.mkdir()
    for step in steps:
        groups = []
        for seed in range(6):
            games = scripted_games("random", seed, seed, seed)
            groups.append([with_token_ids(episode) for episode in games])
        write_episodes(folder, step, groups)
    return folder


def moves_of(recording: Recording) -> tuple[object, ...]:
    return tuple(turn.action for turn in recording.episode.turns)


def test_sample_games_are_whole_tasks_of_the_last_step_before_the_checkpoint_without_tokens(
    tmp_path: Path,
) -> None:
    run = recorded_run(tmp_path / "run", 0, 10, 20)
    file = tmp_path / "a/episodes/step_000010.jsonl"
    assert write_sample_games(run, tmp_path / "a", 19) == file
    games, notes = read_recordings([file])
    all_games, _ = read_recordings([run / "episodes/step_000010.jsonl"])
    assert notes == []
    seeds = [game.episode.seed for game in games]
    assert 3 <= len(seeds) <= 12
    for seed in seeds:
        assert seeds.count(seed) == 3, "a task is whole, so advantages are those of training"
    replayed = {game.episode.seed for game in spread(all_games, 4)}
    assert replayed == set(seeds), "those of the replay page"
    for game in games:
        for turn in game.episode.turns:
            assert not turn.prompt_ids
            assert not turn.reply_ids
            assert not turn.logprobs
    assert {moves_of(game) for game in games} <= {moves_of(game) for game in all_games}


def test_a_folder_that_holds_sample_games_gives_the_same_ones_again(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run", 10)
    first = write_sample_games(run, tmp_path / "a", 19)
    again = write_sample_games(tmp_path / "a", tmp_path / "b", 10)
    assert first is not None
    assert again is not None
    assert sorted(again.read_text().splitlines()) == sorted(first.read_text().splitlines())
