"""Games that were not over in time: their figures, and tasks that a resumed run replaces."""

from dataclasses import replace
from pathlib import Path

import pytest

from fake_engine import task_row
from hanabi_grpo.rollout.datasets import training_rows
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.late_games import (
    late_figures,
    late_tasks,
    read_late_tasks,
    remember_late_tasks,
)
from hanabi_grpo.training.tasks import TaskDataset
from hanabi_grpo.types import DroppedGame, Episode
from made_games import PLAIN, made_turn


def episode(num_turns: int, score: float) -> Episode:
    """An episode of so many turns whose last one pays both players."""
    turns = [made_turn(0) for _ in range(num_turns - 1)]
    return replace(PLAIN, turns=(*turns, made_turn(0, rewards={"score": score})))


def late(seed: int = 0, num_turns: int = 4, rewards: tuple[float, ...] = ()) -> DroppedGame:
    return DroppedGame(
        suite="train",
        seed=seed,
        game=0,
        reason="not over",
        is_late=True,
        num_turns=num_turns,
        rewards=rewards,
    )


FAILED = DroppedGame(suite="train", seed=0, game=1, reason="RuntimeError: no")


def test_a_step_without_late_games_has_no_figures_of_them() -> None:
    assert late_figures([[episode(2, 1.0)]], []) == {}
    assert late_figures([[episode(2, 1.0)]], [FAILED]) == {}


def test_late_games_are_counted_with_how_far_they_had_come() -> None:
    groups = [[episode(2, 1.0), episode(2, 1.0)], [episode(3, 0.0)]]
    figures = late_figures(groups, [late(rewards=(1.0, 0.0)), late(num_turns=8), FAILED])
    assert figures == {"late/share": 2 / 5, "late/turns": 6.0, "late/reward": 0.5}


@pytest.mark.parametrize(
    ("scores", "effect"),
    [
        # Longer games earn more, the longest most: a correlation of 1.
        (((1.0, 2.0, 3.0), (11.0, 12.0, 13.0)), 1.0),
        # The longest game of a group earns what the shortest does: no correlation.
        (((1.0, 0.0, 1.0), (6.0, 5.0, 6.0)), 0.0),
    ],
)
def test_the_correlation_of_length_and_reward_is_taken_within_groups(
    scores: tuple[tuple[float, ...], ...], effect: float
) -> None:
    groups = []
    for group_scores in scores:
        groups.append([episode(2 + index, score) for index, score in enumerate(group_scores)])
    assert late_figures(groups, [late()])["late/length_effect"] == pytest.approx(effect)


def test_a_correlation_needs_games_that_differ() -> None:
    groups = [[episode(2, 1.0), episode(2, 0.0), episode(2, 3.0)]]
    assert "late/length_effect" not in late_figures(groups, [late()])


def test_a_task_counts_as_late_when_it_has_no_other_games() -> None:
    tasks = [task_row(number) for number in range(4)]
    groups = [[], [], [episode(2, 1.0)], []]
    dropped = [late(seed=0), late(seed=1), replace(FAILED, seed=1), late(seed=2)]
    assert late_tasks(tasks, groups, dropped) == [0]


def test_late_tasks_are_remembered_in_the_run_folder(tmp_path: Path) -> None:
    assert read_late_tasks(tmp_path) == frozenset()
    remember_late_tasks(tmp_path, [7])
    remember_late_tasks(tmp_path, [3, 7])
    assert read_late_tasks(tmp_path) == {3, 7}
    (tmp_path / "late_tasks.json").write_text('{"7": [')
    assert read_late_tasks(tmp_path) == frozenset()


def test_a_resumed_run_plays_other_tasks_in_the_place_of_late_ones() -> None:
    rows = training_rows(Settings())
    fresh = TaskDataset(rows, 8)
    resumed = TaskDataset(rows, 8, frozenset({5}))
    before = [task.seed for task in fresh.of_step(1, 4)]
    after = [task.seed for task in resumed.of_step(1, 4)]
    assert [before[0], before[2], before[3]] == [after[0], after[2], after[3]]
    assert after[1] not in [fresh[number].seed for number in range(8)]
    assert resumed.of_step(1, 4)[1].seed == after[1]
