"""What version 0.2 left on a disk stays readable; `tests/data/version-0.2` was written by it."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.replays.timeline import recorded_table
from hanabi_grpo.envs.hanabi.rules import parse_action
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.run_report import read_report
from hanabi_grpo.rollout.recordings import read_recordings
from hanabi_grpo.runs.alarms import AlarmWatch, alarms_of
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.runs.history import read_history
from hanabi_grpo.runs.manifest import check_checkpoint, checkpoints_of, spec_hashes
from hanabi_grpo.runs.resume import plan_resume, resume_lines
from hanabi_grpo.runs.resume_settings import check_compatible, keep_settings, read_saved_settings
from hanabi_grpo.runs.run_folder import recorded_settings, resume_command_of
from hanabi_grpo.runs.saved_adapters import newest_checkpoint, read_adapters
from hanabi_grpo.runs.validation import read_validations
from hanabi_grpo.settings import Settings, read_settings
from hanabi_grpo.training.checkpoint import TrainingState

OLD = Path(__file__).parents[1] / "data" / "version-0.2"
RUN = OLD / "run"
LAPTOP_HASH = "6d2c920b5b32"
"""Of the board that the run plays."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def its_settings(**changes: object) -> Settings:
    """Return the settings that the run was started with, or others."""
    given = {
        "device": "cpu",
        "model": "data/tiny-model",
        "tasks_per_step": 1,
        "task_seed": 7,
        "num_generations": 2,
        "max_steps": 2,
        "save_steps": 1,
        "lora_rank": 1,
        "lora_alpha": 2,
        "swap_every": 1,
        "episodes_every": 1,
        "eval_steps": 1,
        "eval_tasks": 2,
        "resume": "latest",
    }
    return Settings.model_validate({**given, **changes})


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


# Settings


def test_settings_that_were_renamed_have_their_names_of_now() -> None:
    old_names = ("HANABI_DEALS_PER_STEP", "HANABI_DEAL_SEED", "HANABI_EVAL_DEALS")
    written = json.loads((RUN / "settings.json").read_text())["settings"]
    assert [written[name] for name in old_names] == [1, 7, 2]
    for values in (recorded_settings(RUN), read_saved_settings(RUN)["settings"]):
        assert values["HANABI_TASKS_PER_STEP"] == 1
        assert values["HANABI_TASK_SEED"] == 7
        assert values["HANABI_EVAL_TASKS"] == 2
        assert not values.keys() & set(old_names)


def test_settings_are_read_with_what_was_given() -> None:
    settings = read_settings(RUN / "settings.json", {})
    assert (settings.tasks_per_step, settings.task_seed, settings.eval_tasks) == (1, 7, 2)
    assert (settings.num_generations, settings.lora_rank, settings.swap_every) == (2, 1, 1)
    assert {"tasks_per_step", "task_seed", "eval_tasks"} <= settings.model_fields_set
    assert "beta" not in settings.model_fields_set


def test_the_command_that_goes_on_is_one_of_now() -> None:
    command = resume_command_of(RUN)
    assert "HANABI_TASKS_PER_STEP=1 HANABI_TASK_SEED=7 MAX_STEPS=2" in command
    assert "HANABI_EVAL_TASKS=2" in command
    assert "DEAL" not in command


def test_a_copy_of_its_settings_is_as_they_were(run: Path) -> None:
    copy = keep_settings(run, 2)
    assert copy is not None
    assert copy.read_bytes() == (RUN / "settings.json").read_bytes()


# Going on


def test_every_checkpoint_is_whole_and_the_newest_is_the_runs() -> None:
    assert list(checkpoints_of(RUN)) == [1, 2]
    for step, folder in checkpoints_of(RUN).items():
        manifest = check_checkpoint(folder)
        assert manifest.step == step
        assert spec_hashes(manifest.facts) == (LAPTOP_HASH,)
    assert newest_checkpoint(RUN) == RUN / "checkpoint-2"


def test_its_adapters_are_read() -> None:
    saved = read_adapters(RUN / "checkpoint-2")
    assert (saved.step, saved.lora_rank) == (2, 1)
    assert list(saved.adapters) == ["player_0", "player_1"]
    for weights, config in saved.adapters.values():
        assert config["r"] == 1
        assert len(load(weights)) == 42


def test_its_trainer_state_is_read() -> None:
    state = TrainingState.load(RUN / "checkpoint-2" / "trainer", 2)
    assert [dict(group) for group in state.groups] == [
        {"player": "player_0", "updates": 2, "lr": 0.0015},
        {"player": "player_1", "updates": 2, "lr": 0.0015},
    ]
    assert state.step_state.baselines == {
        f"player_{number} {LAPTOP_HASH}": 1.05 for number in (0, 1)
    }
    assert state.random_states[0].keys() >= {"python", "numpy", "torch"}
    assert len(state.moments) == 252


def test_it_goes_on_from_its_last_step(run: Path) -> None:
    settings = its_settings(output_dir=run, max_steps=3)
    plan = plan_resume(settings)
    assert plan is not None
    assert (plan.run_folder, plan.checkpoint, plan.step) == (run, run / "checkpoint-2", 2)
    assert plan.skipped == ()
    lines = resume_lines(plan, settings, steps=3)
    assert lines[1:] == ["    changed since: MAX_STEPS: was 2, is 3"]


def test_it_does_not_go_on_with_another_number_of_tasks() -> None:
    saved = read_saved_settings(RUN)
    assert check_compatible(saved, its_settings()) == []
    with pytest.raises(SettingsError) as caught:
        check_compatible(saved, its_settings(tasks_per_step=2, task_seed=8))
    assert str(caught.value).splitlines()[1:-1] == [
        "  HANABI_TASKS_PER_STEP: was 1, is 2",
        "  HANABI_TASK_SEED: was 7, is 8",
    ]


# Records


def test_its_metrics_validations_and_alarms_are_read() -> None:
    rows = read_history(RUN / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["score/mean"] == 1.5
    assert [(row.step, row.score) for row in read_validations(RUN)] == [
        (0, 1.5),
        (1, 0.0),
        (2, 2.0),
    ]
    watch = AlarmWatch.after(rows, alarms_of(recorded_settings(RUN)))
    assert watch.raised == {}
    assert len(watch.readings) > 0


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("games/games_000000.jsonl", 4),
        ("run/episodes/step_000000.jsonl", 2),
        ("run/episodes/step_000001.jsonl", 2),
    ],
)
def test_recorded_games_are_played_again_to_the_score_they_had(path: str, count: int) -> None:
    recordings, notes = read_recordings([OLD / path])
    assert notes == []
    assert len(recordings) == count
    for recording in recordings:
        episode = recording.episode
        game = recorded_table(recording)
        for turn in episode.turns:
            assert game.current_player == turn.player
            game.apply(parse_action(turn.action, num_players=2, player=turn.player))
        assert game.score == episode.result["score"]
        assert game.score_kept == episode.result["score_kept"]


def test_an_evaluation_has_the_figures_that_it_was_written_with() -> None:
    [path] = (RUN / "evaluations").iterdir()
    result = read_result(path)
    assert (result.lineup, result.num_tasks, result.mean) == ("outputs/golden", 4, 0.5)
    assert result.spec_hash == LAPTOP_HASH
    assert result.figures["score_kept"] == 1.0
    assert [seat.partition("@")[2] for seat in result.orders[0].seats] == ["2", "2"]


def test_its_report_has_steps_evaluations_and_validations() -> None:
    report = read_report(RUN)
    assert report.notes == []
    assert len(report.evaluations) == 1
    [line] = report.validation_lines
    assert line.startswith("validation: best 2.000 ± 0.000 at step 2")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["view", "{run}"], "2 of 2 games"),
        (["watch", "{run}", "--once"], "step 2"),
        (
            ["report", "{run}", "--alarms", "--html", "{tmp}/run.html", "--png", "{tmp}/pictures"],
            "run.html",
        ),
        (["compare", "a={run}", "b={run2}"], "training games up to step 2"),
    ],
)
def test_the_run_is_shown(arguments: list[str], shown: str, run: Path, tmp_path: Path) -> None:
    run2 = shutil.copytree(run, tmp_path / "run2")
    filled = [text.format(run=run, run2=run2, tmp=tmp_path) for text in arguments]
    assert shown in invoke(*filled)


# Work that was finished


def test_a_collection_is_known_to_be_complete_and_can_be_made_longer(tmp_path: Path) -> None:
    games = shutil.copytree(OLD / "games", tmp_path / "games")
    before = (games / "games_000000.jsonl").read_bytes()
    words = ("collect", "iggi", "--games", 2, "--out", games)
    invoke(*words, "--tasks", 2)
    assert sorted(path.name for path in games.glob("*.jsonl")) == ["games_000000.jsonl"]
    invoke(*words, "--tasks", 3)
    assert (games / "games_000000.jsonl").read_bytes() == before
    assert sorted(path.name for path in games.glob("*.jsonl")) == [
        "games_000000.jsonl",
        "games_000002.jsonl",
    ]


def test_the_cells_of_a_cross_play_were_named_by_position_and_are_kept_beside_the_new_ones(
    tmp_path: Path,
) -> None:
    cross = shutil.copytree(OLD / "cross", tmp_path / "cross")
    old_cells = {path.name: path.read_bytes() for path in (cross / "cells").iterdir()}
    assert sorted(old_cells) == ["0-0.jsonl", "0-1.jsonl", "1-0.jsonl", "1-1.jsonl"]
    invoke("cross-play", "iggi", "random", "--tasks", 4, "--out", cross)
    cells = {path.name: path.read_bytes() for path in (cross / "cells").iterdir()}
    assert len(cells) == 8
    assert old_cells.items() < cells.items()
