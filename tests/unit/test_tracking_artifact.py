"""What goes up as an artifact, which checkpoint is the best, and what the run folder remembers of
it.
"""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.agents.script import make_script
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
from tracked_runs import PLAYERS, SECRET, add_checkpoint, scripted_games, tracked_run
from training_runs import LAPTOP as SETUP
from training_runs import evaluate_scripted


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def rows(scores: list[Any]) -> list[dict[str, Any]]:
    return [
        {"step": step, "games": 1.0, "score/mean": score}
        for step, score in enumerate(scores, start=1)
    ]


def made(step: int, mean: float, num_steps: int = 10) -> RunningScore:
    return RunningScore(step=step, mean=mean, standard_error=0.1, num_steps=num_steps)


def test_the_best_beats_all_earlier_ones_and_few_lucky_steps_never_beat_ten() -> None:
    assert is_best(made(20, 2.0), [made(10, 1.9)])
    assert not is_best(made(20, 2.0), [made(10, 2.0)])
    assert is_best(made(20, 1.0), [made(3, 4.0, num_steps=3)])
    assert not is_best(made(3, 4.0, num_steps=3), [made(20, 1.0)])
    assert is_best(made(3, 0.0, num_steps=3), [])
    assert not is_best(None, [])
    # Made again after a resume, it does not compete with itself.
    assert is_best(made(20, 2.0), [made(20, 2.5), made(10, 1.0)])


def test_an_artifact_holds_adapters_card_settings_and_evaluations_but_no_optimizer_and_no_key(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "run", steps=12, HANABI_PRESET="laptop")
    checkpoint = add_checkpoint(run, 12)
    write_document(run / "evaluation.json", result_to_json(evaluate_scripted("random", SETUP, 3)))
    (run / "evaluation-torn.json").write_text('{"mean": 1')
    settings = read_settings(run / "settings.json", {"HANABI_API_KEY": SECRET})
    assert settings.api_key is not None and settings.api_key.get_secret_value() == SECRET
    score = running_score(rows([9.0, 9.0, *([1.0, 2.0] * 5), 9.0]), 12)
    folder, metadata = build_artifact(run, checkpoint, settings, score)
    assert folder == run / "artifacts/step_12"
    adapters = {
        f"{name}/{file}"
        for name in PLAYERS
        for file in ("adapter_config.json", "adapter_model.safetensors")
    }
    notes = {"README.md", "manifest.json", "settings.json", "training_score.json"}
    assert files(folder) == adapters | notes | {
        "episodes/step_000012.jsonl",
        "evaluation/evaluation.json",
    }
    for path in folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in json.dumps(metadata)
    expected = {
        "step": 12,
        "players": 2,
        "adapters": list(PLAYERS),
        "base_model": "models/tiny",
        "rank": 8,
    }
    expected |= {"env": "hanabi", "preset": "laptop", "spec_hashes": ["2beb8aa616bb"]}
    # Ten values of 1 and 2: deviation sqrt(10 * 0.25 / 9), over sqrt(10).
    expected |= {
        "score": 1.5,
        "score_se": pytest.approx((2.5 / 9) ** 0.5 / 10**0.5),
        "score_steps": 10,
    }
    assert {key: metadata[key] for key in expected} == expected
    assert metadata["commit"] is None or len(metadata["commit"].removesuffix("+changes")) == 40
    card = (folder / "README.md").read_text()
    assert (
        "1.50 ± 0.17 over 10 steps" in card
        and "evaluation.json" in card
        and "it is no evaluation" in card
    )


def test_a_run_of_another_environment_goes_up_in_its_own_words(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", games=False, HANABI_ENV="kuhn")
    settings = read_settings(run / "settings.json")
    player = make_script(settings.setup(), "random")
    task = settings.setup().task("train", 3)
    write_episodes(
        run,
        3,
        [[asyncio.run(play_episode(task, [player] * 2, game=number)) for number in range(2)]],
    )
    folder, metadata = build_artifact(run, add_checkpoint(run, 3), settings, None)
    assert (metadata["env"], metadata["preset"], metadata["players"]) == ("kuhn", "kuhn", 2)
    assert "# Players of kuhn" in (folder / "README.md").read_text()
    games, _ = read_recordings([folder / "episodes/step_000003.jsonl"])
    assert [(one.episode.env, one.episode.seed, one.episode.game) for one in games] == [
        ("kuhn", 3, 0),
        ("kuhn", 3, 1),
    ]


def test_an_artifact_outlives_its_checkpoint_and_is_made_anew_whole_and_names_no_folder(
    tmp_path: Path,
) -> None:
    model = tmp_path / "home-of-somebody" / "tiny"
    model.mkdir(parents=True)
    run = tracked_run(tmp_path / "run", MODEL=str(model))
    checkpoint, settings = add_checkpoint(run, 3), read_settings(run / "settings.json")
    (run / "artifacts/.step_3.partial").mkdir(parents=True)
    (run / "artifacts/.step_3.partial/rest").write_text("of a killed process")
    first, _ = build_artifact(run, checkpoint, settings, None)
    again, metadata = build_artifact(run, checkpoint, settings, None)
    assert (again, metadata["base_model"]) == (first, "tiny")
    assert "home-of-somebody" not in (first / "README.md").read_text()
    (damaged := add_checkpoint(run, 4) / "player_0/adapter_model.safetensors").write_bytes(
        b"player_X at 4"
    )
    with pytest.raises(RunFolderError, match=r"player_0/adapter_model\.safetensors has sha256"):
        build_artifact(run, damaged.parents[1], settings, None)
    shutil.rmtree(checkpoint)
    assert (first / "player_1/adapter_model.safetensors").read_bytes() == b"player_1 at 3"
    assert newest_checkpoint(first) == first
    assert [path.name for path in (run / "artifacts").iterdir()] == ["step_3"]


def test_an_alias_belongs_to_one_artifact_and_the_same_step_keeps_its_own() -> None:
    def one(step: int, *aliases: str, mode: str = "online") -> ArtifactRecord:
        return ArtifactRecord(
            step=step, name="n", aliases=list(aliases), folder=f"artifacts/step_{step}", mode=mode
        )

    record = WandbRecord(id="abcd1234")
    record.add(one(10, "checkpoint_global_step_10", "best"))
    record.add(one(20, "checkpoint_global_step_20", "best"))
    record.add(one(20, "checkpoint_global_step_20", "latest", "end"))
    assert {found.step: found.aliases for found in record.artifacts} == {
        10: ["checkpoint_global_step_10"],
        20: ["checkpoint_global_step_20", "best", "latest", "end"],
    }


def test_a_damaged_record_is_a_new_run_and_a_whole_one_keeps_its_id(tmp_path: Path) -> None:
    for text in ("", "[]", '{"id": 3}', '{"id": "../../x"}', "\xff", '{"id": "abcd"', "[" * 5000):
        (tmp_path / "wandb.json").write_bytes(text.encode("latin-1"))
        fresh = read_record(tmp_path)
        assert len(fresh.id) == 12 and fresh.id.isalnum()
        write_record(tmp_path, fresh)
        assert read_record(tmp_path) == fresh


def recorded_run(folder: Path, *steps: int) -> Path:
    """Write a run whose recorded steps have 6 tasks of 3 games, with token ids."""
    folder.mkdir()
    for step in steps:
        groups = [scripted_games("random", *[seed] * 3) for seed in range(6)]
        ids = {"prompt_ids": (1, 2), "reply_ids": (3,), "logprobs": (-0.5,)}
        with_ids = [
            [replace(one, turns=tuple(replace(turn, **ids) for turn in one.turns)) for one in group]  # type: ignore[arg-type]
            for group in groups
        ]
        write_episodes(folder, step, with_ids)
    return folder


def test_sample_games_are_whole_deals_of_the_last_step_before_the_checkpoint_without_tokens(
    tmp_path: Path,
) -> None:
    run = recorded_run(tmp_path / "run", 0, 10, 20)
    assert write_sample_games(run, tmp_path / "a", 19) == tmp_path / "a/episodes/step_000010.jsonl"
    games, notes = read_recordings([tmp_path / "a/episodes/step_000010.jsonl"])
    everything, _ = read_recordings([run / "episodes/step_000010.jsonl"])
    tasks = [one.episode.seed for one in games]
    assert notes == [] and 3 <= len(tasks) <= 12
    assert all(tasks.count(seed) == 3 for seed in tasks), (
        "a task is whole, so that advantages are those of training"
    )
    assert {one.episode.seed for one in spread(everything, 4)} == set(tasks), (
        "those of the replay page"
    )
    assert all(
        not (turn.prompt_ids or turn.reply_ids or turn.logprobs)
        for one in games
        for turn in one.episode.turns
    )
    moves = {tuple(turn.action for turn in one.episode.turns) for one in everything}
    assert {tuple(turn.action for turn in one.episode.turns) for one in games} <= moves
    # What holds sample games already gives the same ones again.
    assert write_sample_games(tmp_path / "a", tmp_path / "b", 10) is not None
    again, first = (tmp_path / name / "episodes/step_000010.jsonl" for name in ("b", "a"))
    assert sorted(again.read_text().splitlines()) == sorted(first.read_text().splitlines())
