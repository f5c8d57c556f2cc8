"""Validation while training: its tasks, the best version, patience, and a resumed run."""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import pytest

from hanabi_grpo.client.curves import validation_curves
from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import VALIDATION_SUITE, dataset_row
from hanabi_grpo.rollout.datasets import write_dataset
from hanabi_grpo.runs.checkpoints import rotate, write_checkpoint
from hanabi_grpo.runs.validation import (
    FILE,
    TRAINING_CURVE,
    Validated,
    best_checkpoint,
    cut_validations,
    lacks_validation,
    read_validations,
    write_validations,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.steps import check_updates
from hanabi_grpo.training.validation import Validation
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

LAPTOP = registry.setup("hanabi", {"preset": "laptop"})
MINI = registry.setup("hanabi", {"preset": "marshal-mini"})
SETTINGS = Settings(eval_steps=10, eval_tasks=5, save_steps=10)


def make_groups(*scores: int) -> list[list[Episode]]:
    """Return a game of a task of its own for each score, on the laptop board."""
    spec = LAPTOP.spec
    groups = []
    for seed, score in enumerate(scores):
        game = made_episode(
            made_turn(0), score=score, preset=spec.preset, spec_hash=spec.hash, seed=seed
        )
        groups.append([game])
    return groups


def made_validation(
    folder: Path, settings: Settings = SETTINGS, *, first_step: int = 0
) -> Validation:
    """Return the validation of a run, which has the curves of its settings."""
    return Validation(settings, folder, validation_curves(settings), first_step)


def add(validation: Validation, step: int, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """Add a validation on the only curve."""
    return dict(validation.add(step, {TRAINING_CURVE: groups}, ()))


def settings_of_both(folder: Path) -> Settings:
    """Return settings of a run that trains on two boards."""
    path = folder / "both.jsonl"
    presets = ("laptop", "marshal-mini")
    write_dataset(path, [dataset_row(preset, suite="train", num_tasks=0) for preset in presets])
    return Settings(eval_steps=10, eval_tasks=5, save_steps=10, dataset=str(path))


def test_tasks_are_a_suite_of_their_own_and_as_many_of_every_board_that_is_trained(
    tmp_path: Path,
) -> None:
    [curve] = validation_curves(settings_of_both(tmp_path))
    assert curve.name == TRAINING_CURVE
    assert {task.suite for task in curve.tasks} == {VALIDATION_SUITE}
    assert [(task.env_config["preset"], task.seed) for task in curve.tasks] == [
        ("laptop", 0),
        ("laptop", 1),
        ("laptop", 2),
        ("marshal-mini", 0),
        ("marshal-mini", 1),
        ("marshal-mini", 2),
    ]


def test_a_validation_is_due_every_eval_steps(tmp_path: Path) -> None:
    validation = made_validation(tmp_path)
    assert validation.best is None
    assert [step for step in range(25) if validation.is_due(step)] == [0, 10, 20]


@pytest.fixture
def four_validations(tmp_path: Path) -> Validation:
    """Validations of versions 0 to 30, of which version 10 is the best."""
    validation = made_validation(tmp_path)
    for step, first, second, stale in (
        (0, 0, 2, 0),
        (10, 2, 4, 0),
        (20, 3, 3, 1),
        (30, 0, 0, 2),
    ):
        metrics = add(validation, step, make_groups(first, second))
        assert metrics["validation/score/mean"] == (first + second) / 2
        assert metrics["validation/score/se"] == abs(first - second) / 2
        assert metrics["validation/stale"] == stale
    return validation


def test_the_best_version_is_the_first_of_the_greatest_score_and_later_ones_are_stale(
    four_validations: Validation,
) -> None:
    best = four_validations.best
    assert best is not None
    assert best.step == 10
    assert best.score == 3.0
    assert best.se == 1.0
    assert not four_validations.is_due(30)
    # One game has no error.
    assert add(four_validations, 40, make_groups(1)) == {}


def test_a_run_that_goes_on_from_step_20_knows_the_validations_up_to_there(
    four_validations: Validation, tmp_path: Path
) -> None:
    resumed = made_validation(tmp_path, first_step=20)
    assert [row.step for row in resumed.rows] == [0, 10, 20]
    assert resumed.stale == 1
    assert resumed.is_due(30)
    stored = json.loads((tmp_path / FILE).read_text())
    assert [row["step"] for row in stored] == [0, 10, 20, 30]


def test_validations_wait_while_the_disk_is_full_and_are_written_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    validation = made_validation(tmp_path)
    add(validation, 0, make_groups(1, 1))

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("hanabi_grpo.runs.validation.write_text_atomic", refuse)
        metrics = add(validation, 10, make_groups(2, 4))
        validation.write()
    assert metrics["validation/score/mean"] == 3.0
    assert caplog.text.count("validation.json could not be written (No space left on device)") == 2
    assert [row.step for row in made_validation(tmp_path, first_step=10).rows] == [0]
    validation.write()
    assert [row.step for row in made_validation(tmp_path, first_step=10).rows] == [0, 10]


def test_over_several_boards_the_score_and_its_error_are_of_shares_of_the_greatest(
    tmp_path: Path,
) -> None:
    laptop_max = LAPTOP.spec.max_score
    mini_max = MINI.spec.max_score
    assert laptop_max is not None
    assert mini_max is not None
    mini_game = made_episode(
        made_turn(0), score=2, preset=MINI.spec.preset, spec_hash=MINI.spec.hash
    )
    validation = made_validation(tmp_path, settings_of_both(tmp_path))
    metrics = add(validation, 0, [*make_groups(1, 4), [mini_game]])
    shares = [1 / laptop_max, 4 / laptop_max, 2 / mini_max]
    [row] = validation.rows
    assert row.metric == "score/normalized"
    assert row.score == pytest.approx(mean(shares))
    assert row.se == pytest.approx(stdev(shares) / 3**0.5)
    assert row.se == metrics["validation/score/normalized_se"]


def test_a_resumed_run_stops_where_the_whole_run_stops(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"eval_patience": 1})
    whole = made_validation(tmp_path, settings)
    add(whole, 0, make_groups(2, 2))
    add(whole, 10, make_groups(1, 1))
    # Only where it was seen; a user may ask for more steps.
    assert [step for step in range(20) if whole.verdict(step).ends_run] == [10]

    resumed = made_validation(tmp_path, settings, first_step=10)
    assert resumed.verdict(10).ends_run
    assert not resumed.verdict(11).ends_run

    without_patience = made_validation(tmp_path, first_step=10)
    assert not without_patience.verdict(10).ends_run


def test_a_resumed_run_validates_the_version_it_begins_with_again(tmp_path: Path) -> None:
    # Its figures were in the row of the next step, which was moved aside.
    whole = made_validation(tmp_path)
    for step in (0, 10):
        add(whole, step, make_groups(1, 3))
    rows = list(whole.rows)
    resumed = made_validation(tmp_path, first_step=10)
    assert not resumed.is_due(0)
    assert resumed.is_due(10)
    assert resumed.rows == rows
    assert "validation/score/mean" in add(resumed, 10, make_groups(1, 3))
    assert resumed.rows == rows
    assert not resumed.is_due(10)


def test_a_run_that_ended_after_the_validation_of_every_step_stays_ended(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"eval_steps": 1, "save_steps": 1, "eval_patience": 2})
    whole = made_validation(tmp_path, settings)
    for step, score in ((0, 3), (1, 2), (2, 2)):
        add(whole, step, make_groups(score, score))
    assert whole.verdict(2).ends_run
    # The last version is validated, too, after the step that ended the run.
    add(whole, 3, make_groups(2, 2))
    assert made_validation(tmp_path, settings, first_step=3).ended_at(3)
    assert not made_validation(tmp_path, settings, first_step=2).ended_at(2)


def test_versions_after_the_resumed_one_are_not_validated_any_more(tmp_path: Path) -> None:
    whole = made_validation(tmp_path)
    for step in (0, 10, 20):
        add(whole, step, make_groups(1, 3))
    cut_validations(tmp_path, 10)
    assert [row.step for row in read_validations(tmp_path)] == [0, 10]
    # A run that starts over may be another one.
    cut_validations(tmp_path, 0)
    assert read_validations(tmp_path) == []
    cut_validations(tmp_path, 0)


def test_a_last_version_without_validation_is_noticed(tmp_path: Path) -> None:
    whole = made_validation(tmp_path)
    add(whole, 0, make_groups(1, 3))
    assert lacks_validation(tmp_path, 10, 10)
    assert not lacks_validation(tmp_path, 11, 10)
    assert not lacks_validation(tmp_path, 10, 0)
    add(whole, 10, make_groups(1, 3))
    assert not lacks_validation(tmp_path, 10, 10)


def test_two_ways_to_show_one_board_have_scores_that_can_be_averaged(tmp_path: Path) -> None:
    path = tmp_path / "styles.jsonl"
    rows = [
        dataset_row("laptop", suite="train", num_tasks=0, observation=style)
        for style in ("compact", "full")
    ]
    write_dataset(path, rows)
    settings = Settings(eval_steps=10, eval_tasks=5, save_steps=10, dataset=str(path))
    validation = made_validation(tmp_path, settings)
    add(validation, 0, make_groups(1, 4))
    [row] = validation.rows
    assert row.metric == "score/mean"
    assert row.score == 2.5


def test_the_best_checkpoint_outlives_its_turn(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, step, lambda folder: None, {"adapters": []}, needed_bytes=0)
        rotate(tmp_path, 2, best=10)
    names = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert names == ["checkpoint-10", "checkpoint-30", "checkpoint-40"]
    rotate(tmp_path, 2, best=40)
    assert not (tmp_path / "checkpoint-10").exists()


def test_the_best_version_of_a_fork_may_be_the_one_that_it_began_with(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    write_checkpoint(parent, 50, lambda folder: None, {"adapters": []}, needed_bytes=0)
    fork = tmp_path / "fork"
    fork.mkdir()
    start = {"folder": str(parent / "checkpoint-50"), "adapter": "player_0", "step": 50}
    facts = {"adapters": [], "started_from": {"player_0": start}}
    write_checkpoint(fork, 60, lambda folder: None, facts, needed_bytes=0)
    rows = [Validated(step=50, score=3.0, se=0.1), Validated(step=60, score=2.0, se=0.1)]
    write_validations(fork, rows)
    assert best_checkpoint(fork) == parent / "checkpoint-50"
    shutil.rmtree(parent)
    with pytest.raises(SettingsError, match=r"the best version .* is missing"):
        best_checkpoint(fork)


def test_validations_between_checkpoints_are_refused() -> None:
    with pytest.raises(
        SettingsError,
        match=r"HANABI_EVAL_STEPS=10 with SAVE_STEPS=4: .* set a multiple of SAVE_STEPS",
    ):
        check_updates(Settings(eval_steps=10, save_steps=4))
