"""What version 0.1 left on a disk stays readable; `tests/data/version-0.1` was written by it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.replays.timeline import recorded_table
from hanabi_grpo.envs.hanabi.rules import make_spec, parse_action
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.recordings import read_recordings
from hanabi_grpo.runs import v1
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.runs.manifest import check_checkpoint
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.resume_settings import check_compatible, read_saved_settings
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings import Settings, read_settings

OLD = Path(__file__).parents[1] / "data" / "version-0.1"
RUN = OLD / "run"


@pytest.mark.parametrize(
    "path", ["games", "run/episodes/step_000000.jsonl", "run/episodes/step_000002.jsonl"]
)
def test_recorded_games_are_played_again_to_the_score_they_had(path: str) -> None:
    files = sorted((OLD / path).glob("*.jsonl")) if (OLD / path).is_dir() else [OLD / path]
    recordings, notes = read_recordings(files)
    assert notes == [] and len(recordings) in (4, 8)
    for recording in recordings:
        episode = recording.episode
        game = recorded_table(recording)
        for turn in episode.turns:
            assert game.current_player == turn.player
            game.apply(parse_action(turn.action, num_players=2, player=turn.player))
        assert (game.score, game.score_kept) == (
            episode.result["score"],
            episode.result["score_kept"],
        )


def test_a_checkpoint_is_whole_and_the_runs_newest() -> None:
    manifest = check_checkpoint(RUN / "checkpoint-3")
    assert (manifest.step, manifest.facts["board_hashes"]) == (3, ["2beb8aa616bb"])
    assert newest_checkpoint(RUN) == RUN / "checkpoint-3"


def test_a_run_on_half_of_the_decks_starts_a_new_one_and_does_not_go_on(tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    in_place = plan_resume(Settings(resume=str(run)))
    fork = plan_resume(Settings(resume=str(run), output_dir=tmp_path / "new"))
    assert in_place is not None and fork is not None and (in_place.step, fork.step) == (3, 3)
    with pytest.raises(
        SettingsError, match=r"on half of the decks of laptop; .*OUTPUT_DIR=\(a new folder\)"
    ):
        v1.check_decks(in_place.checkpoint, in_place.spec_hashes, fork=False)
    v1.check_decks(fork.checkpoint, fork.spec_hashes, fork=fork.fork)
    # Boards of today, and one that always dealt all.
    v1.check_decks(in_place.checkpoint, (make_spec("laptop").hash, "10743f8424a0"), fork=False)


def test_a_player_that_is_out_of_tokens_paid_nothing_then_and_the_other_settings_are_compared() -> (
    None
):
    dataset = Path(__file__).parents[2] / "data" / "hanabi.laptop.jsonl"
    given: dict[str, Any] = {
        "dataset": str(dataset),
        "model": "outputs/tiny-model",
        "num_generations": 4,
        "tasks_per_step": 2,
        "lora_rank": 1,
        "lora_alpha": 2,
    }
    assert read_settings(RUN / "settings.json").tasks_per_step == 2
    saved = read_saved_settings(RUN)
    saved["settings"]["DATASET"] = str(dataset)
    notes = check_compatible(saved, Settings(**given, reward_out_of_tokens=0.0))
    assert "SAVE_STEPS: was 1, is 50" in notes
    with pytest.raises(SettingsError) as caught:
        check_compatible(saved, Settings(**given))
    assert str(caught.value).splitlines()[1:-1] == [
        "  HANABI_REWARD_OUT_OF_TOKENS: was 0.0, is -0.5"
    ]


def test_an_evaluation_has_the_figures_that_it_was_written_with() -> None:
    result = read_result(RUN / "evaluations" / "after.json")
    assert (result.mean, result.num_tasks, result.spec_hash) == (0.6, 20, "2beb8aa616bb")
    assert result.orders[0].seats == ("player_0@3", "player_1@3")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["view", "{run}"], "8 of 8 games"),
        (
            ["report", "{run}", "--alarms", "--html", "{tmp}/run.html", "--png", "{tmp}/pictures"],
            "run.html",
        ),
    ],
)
def test_a_run_is_shown(words: list[str], shown: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    result = CliRunner().invoke(app, [word.format(run=run, tmp=tmp_path) for word in words])
    assert result.exit_code == 0, result.output
    assert shown in result.output
