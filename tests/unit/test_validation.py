"""Validation while training: its own tasks, the best version, patience, and what a resumed run
knows of it.
"""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.checkpoints import rotate, write_checkpoint
from hanabi_grpo.runs.validation import FILE
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.steps import check_updates
from hanabi_grpo.training.validation import SUITE, Validation
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

LAPTOP = registry.setup("hanabi", {"preset": "laptop"})
MINI = registry.setup("hanabi", {"preset": "marshal-mini"})
SETTINGS = Settings(eval_steps=10, eval_tasks=5, save_steps=10)


def games(*scores: int) -> list[list[Episode]]:
    spec = LAPTOP.spec
    return [
        [made_episode(made_turn(0), score=score, preset=spec.preset, spec_hash=spec.hash)]
        for score in scores
    ]


def test_deals_are_a_suite_of_their_own_and_the_same_for_every_game_that_is_trained(
    tmp_path: Path,
) -> None:
    found = Validation(SETTINGS, tmp_path, [LAPTOP, MINI], 0).tasks()
    assert [(one["env_config"]["preset"], one["suite"], one["seed"]) for one in found] == [
        (preset, SUITE, seed) for preset in ("laptop", "marshal-mini") for seed in range(3)
    ]


def test_the_best_version_is_the_first_of_the_greatest_score_and_later_ones_are_stale(
    tmp_path: Path,
) -> None:
    made = Validation(SETTINGS, tmp_path, [LAPTOP], 0)
    assert made.best is None and [step for step in range(25) if made.is_due(step)] == [0, 10, 20]
    for step, scores, stale in ((0, (0, 2), 0), (10, (2, 4), 0), (20, (3, 3), 1), (30, (0, 0), 2)):
        found = made.add(step, games(*scores))
        assert (
            found["validation/score/mean"] == sum(scores) / 2 and found["validation/stale"] == stale
        )
        assert found["validation/score/se"] == abs(scores[0] - scores[1]) / 2
    assert made.best is not None and (made.best.step, made.best.score, made.best.se) == (
        10,
        3.0,
        1.0,
    )
    assert not made.is_due(30) and made.add(40, games(1)) == {}, "one game has no error"
    # A run that goes on from step 20 knows what was found up to there.
    again = Validation(SETTINGS, tmp_path, [LAPTOP], 20)
    assert [row.step for row in again.rows] == [0, 10, 20] and again.stale == 1 and again.is_due(30)
    assert [row["step"] for row in json.loads((tmp_path / FILE).read_text())] == [0, 10, 20, 30]


def test_over_several_games_the_score_and_its_error_are_of_shares_of_the_greatest(
    tmp_path: Path,
) -> None:
    played = games(1, 4)
    spec = MINI.spec
    made = made_episode(made_turn(0), score=2, preset=spec.preset, spec_hash=spec.hash)
    validation = Validation(SETTINGS, tmp_path, [LAPTOP, MINI], 0)
    found = validation.add(0, [*played, [made]])
    shares = [
        1 / (LAPTOP.spec.max_score or 0),
        4 / (LAPTOP.spec.max_score or 0),
        2 / (spec.max_score or 0),
    ]
    [row] = validation.rows
    assert (row.score, row.metric) == (pytest.approx(mean(shares)), "score/normalized")
    assert (
        row.se == pytest.approx(stdev(shares) / 3**0.5) == found["validation/score/normalized_se"]
    )


def test_a_resumed_run_stops_where_the_whole_run_stops(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"eval_patience": 1})
    made = Validation(settings, tmp_path, [LAPTOP], 0)
    for step, score in ((0, 2), (10, 1)):
        made.add(step, games(score, score))
    assert [step for step in range(20) if made.verdict(step).ends_run] == [10], (
        "only where it was seen; more steps may be asked"
    )
    again = Validation(settings, tmp_path, [LAPTOP], 10)
    assert not again.is_due(10) and again.verdict(10).ends_run and not again.verdict(11).ends_run
    assert not Validation(SETTINGS, tmp_path, [LAPTOP], 10).verdict(10).ends_run


def test_the_best_checkpoint_outlives_its_turn(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, step, lambda folder: None, {"adapters": []}, needed_bytes=0)
        rotate(tmp_path, 2, best=10)
    left = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert left == [f"checkpoint-{step}" for step in (10, 30, 40)]
    rotate(tmp_path, 2, best=40)
    assert not (tmp_path / "checkpoint-10").exists()


def test_validations_between_checkpoints_are_refused() -> None:
    with pytest.raises(
        SettingsError,
        match=r"HANABI_EVAL_STEPS=10 with SAVE_STEPS=4: .* set a multiple of SAVE_STEPS",
    ):
        check_updates(Settings(eval_steps=10, save_steps=4))
