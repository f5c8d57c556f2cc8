"""Further tasks take the place of flat ones: a link that plays by a rule, and no ms-swift."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import FURTHER_APART, tasks, training_rows
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.resampling import UsedGames, resample
from hanabi_grpo.types import DroppedGame, Episode, Turn
from made_games import made_episode, made_turn

NAMES = ("player_0", "player_1")
VERSION = 3
SEATS = ("player_0@3", "player_1@3")
TASKS_PER_STEP = 4
GAMES_PER_TASK = 2
SETTINGS = Settings(
    tasks_per_step=TASKS_PER_STEP, num_generations=GAMES_PER_TASK, task_seed=1, resample_flat=2
)
FIRST_SEED = 2**32
"""Seed of the first task of HANABI_TASK_SEED=1."""
Rule = Callable[[int], str]
"""Returns, for the number of a task in the run, what becomes of its games.

- "spread": they earn different scores.
- "flat": they earn the same.
- "partner": they differ in what player 1 earns.
- "lost": one of them is dropped.
"""


class Link:
    """Plays two games of a task as a rule says."""

    def __init__(self, rule: Rule, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.rule = rule
        self.asked: list[list[int]] = []
        """Numbers of the tasks of each request."""

    def play(self, tasks: Sequence[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
        assert names == NAMES
        assert version == VERSION
        self.asked.append([task.number for task in tasks])
        groups = []
        dropped = []
        for task in tasks:
            kind = self.rule(task.number)
            games = [make_game(task, number, kind) for number in range(GAMES_PER_TASK)]
            if kind == "lost":
                games.pop()
                dropped.append(
                    DroppedGame(suite=task.suite, seed=task.seed, game=1, reason="planted")
                )
            groups.append(games)
        return RolloutResult(groups=groups, dropped=tuple(dropped))


def make_game(task: TaskRow, number: int, kind: str) -> Episode:
    """Return one game of a task, see `Rule`."""
    score = float(number) if kind == "spread" else 1.0
    penalty = {}
    if kind == "partner" and number:
        penalty["illegal"] = -0.5
    first = made_turn(0, rewards={"score": score})
    second = made_turn(1, rewards=penalty)
    return made_episode(first, second, suite=task.suite, seed=task.seed, game=number, seats=SEATS)


def always(kind: str) -> Rule:
    return lambda task: kind


def play_and_resample(link: Link, step: int = 3, trained: Sequence[str] = SEATS) -> UsedGames:
    """Return what a step learns from; its own tasks are 4 · step and the three after it."""
    first = step * TASKS_PER_STEP
    step_tasks = tasks(training_rows(link.settings), first, TASKS_PER_STEP)
    assert [task.number for task in step_tasks] == [first, first + 1, first + 2, first + 3]
    result = link.play(step_tasks, NAMES, VERSION)
    return resample(link, NAMES, step_tasks, result, version=VERSION, trained=trained)


def task_numbers(groups: Sequence[Sequence[Episode]]) -> list[int]:
    return [group[0].seed - FIRST_SEED for group in groups]


def further(attempt: int, *numbers: int) -> list[int]:
    """Return the numbers of the tasks that take the place of these in a round."""
    return [number + attempt * FURTHER_APART for number in numbers]


def test_flat_tasks_are_replaced_round_by_round_in_their_places_and_the_cost_is_counted() -> None:
    spread = {12, *further(1, 13), *further(2, 15)}
    link = Link(lambda task: "spread" if task in spread else "flat")
    used = play_and_resample(link)
    assert link.asked == [[12, 13, 14, 15], further(1, 13, 14, 15), further(2, 14, 15)]
    assert task_numbers(used.drawn) == [12, 13, 14, 15]
    assert task_numbers(used.groups) == [12, *further(1, 13), 14, *further(2, 15)]
    assert [task.number for task in used.tasks] == task_numbers(used.groups)
    seconds = used.metrics.pop("time/resample")
    assert seconds > 0
    assert used.metrics == {
        "resample/rounds": 2,
        "resample/games_played": 18,
        "resample/games_used": 8,
        "resample/flat_before": 0.75,
        "resample/flat_after": 0.25,
    }
    # The main process hands it to the other ranks.
    assert pickle.loads(pickle.dumps(used)) == used


def test_a_step_without_flat_tasks_asks_for_nothing_more() -> None:
    link = Link(always("spread"))
    used = play_and_resample(link)
    assert link.asked == [[12, 13, 14, 15]]
    assert used.groups == used.drawn
    assert used.metrics["resample/rounds"] == 0
    assert used.metrics["resample/flat_before"] == 0


def test_without_rounds_nothing_is_measured_or_replaced() -> None:
    link = Link(always("flat"), SETTINGS.model_copy(update={"resample_flat": 0}))
    used = play_and_resample(link)
    assert link.asked == [[12, 13, 14, 15]]
    assert used.groups == used.drawn
    assert used.metrics == {}


def test_where_all_is_flat_the_step_has_its_own_games_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = Link(always("flat"))
    used = play_and_resample(link)
    assert "all 4 groups are flat, also after 2 rounds of further tasks" in caplog.text
    assert len(used.further) == 8
    assert len(link.asked) == 3
    assert task_numbers(used.groups) == [12, 13, 14, 15]
    assert used.metrics["resample/flat_before"] == 1
    assert used.metrics["resample/flat_after"] == 1


def test_lost_tasks_are_replaced_too_by_a_flat_one_where_there_is_no_better() -> None:
    lost = {12, *further(1, 13)}

    def rule(task: int) -> str:
        if task in lost:
            return "lost"
        return "spread" if task in (14, 15) else "flat"

    link = Link(rule)
    used = play_and_resample(link)
    assert link.asked == [[12, 13, 14, 15], further(1, 12, 13), further(2, 12, 13)]
    assert task_numbers(used.drawn) == [13, 14, 15]
    assert task_numbers(used.groups) == [*further(1, 12), 13, 14, 15]
    assert used.metrics["resample/flat_before"] == 1 / 3
    assert used.metrics["resample/flat_after"] == 1 / 2
    first_problem, second_problem = used.problems
    assert "1 of 2 games dropped (game 1: planted)" in first_problem
    assert "1 of 2 games dropped (game 1: planted)" in second_problem


def test_a_group_is_flat_where_only_a_player_that_does_not_learn_earns_differently() -> None:
    both_learn = play_and_resample(Link(always("partner")))
    assert both_learn.metrics["resample/rounds"] == 0
    only_player_0_learns = play_and_resample(Link(always("partner")), trained=(SEATS[0], ""))
    assert only_player_0_learns.metrics["resample/rounds"] == 2


def paid(score: float, illegal: float = 0.0) -> Turn:
    return made_turn(0, 3, rewards={"score": score, "illegal": illegal})


@pytest.mark.parametrize(
    ("values", "games", "is_flat"),
    [
        # The same point, earned by the first or by the second of two turns.
        ({"advantage": "grpo"}, [(paid(1), paid(0)), (paid(0), paid(1))], True),
        ({"advantage": "grpo", "gamma": 0.5}, [(paid(1), paid(0)), (paid(0), paid(1))], False),
        ({"advantage": "state_baseline"}, [(paid(1), paid(0)), (paid(0), paid(1))], False),
        # A point more, and a penalty that costs it again: the legal reply of that game is better.
        ({"advantage": "turn"}, [(paid(1, -1), paid(1)), (paid(0), paid(1))], False),
        ({"advantage": "rloo"}, [(paid(1, -1), paid(1)), (paid(0), paid(1))], True),
        # Both games pay more than is counted.
        ({"advantage": "grpo", "reward_clip": 1.0}, [(paid(3),), (paid(2),)], True),
        ({"advantage": "grpo", "reward_clip": 2.5}, [(paid(3),), (paid(2),)], False),
        # Sums that differ by their rounding alone.
        ({"advantage": "grpo"}, [(paid(0.1), paid(0.2), paid(0.3)), (paid(0.6),)], True),
    ],
    ids=[
        "the same return",
        "a return that is discounted",
        "a return to go",
        "a penalty of its turn",
        "a penalty of the game",
        "returns that are cut",
        "returns of which one is cut",
        "rounding",
    ],
)
def test_a_group_is_flat_where_the_estimator_gives_all_its_turns_the_advantage_0(
    values: dict[str, Any], games: list[tuple[Turn, ...]], is_flat: bool
) -> None:
    class LinkOfGames(Link):
        def play(self, tasks: Any, names: Any, version: int) -> RolloutResult:
            groups = []
            for task in tasks:
                group = []
                for number, turns in enumerate(games):
                    at = {"suite": task.suite, "seed": task.seed, "game": number, "seats": SEATS}
                    group.append(made_episode(*turns, **at))
                groups.append(group)
            return RolloutResult(groups=groups, dropped=())

    link = LinkOfGames(always(""), SETTINGS.model_copy(update=values))
    used = play_and_resample(link, trained=(SEATS[0], ""))
    assert used.metrics["resample/flat_before"] == float(is_flat)


def test_groups_of_one_task_that_are_compared_are_not_flat_where_they_differ(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    config = {"preset": "laptop", "seeds": [9]}
    row = {"messages": [{"role": "user", "content": "Play."}], "env_config": config}
    path.write_text(json.dumps(row))

    class LinkOfOneTask(Link):
        def play(self, tasks: Any, names: Any, version: int) -> RolloutResult:
            groups = []
            for number, _ in enumerate(tasks):
                turn = made_turn(0, 3, rewards={"score": float(number == 2)})
                group = [made_episode(turn, seed=9, game=game, seats=SEATS) for game in range(2)]
                groups.append(group)
            return RolloutResult(groups=groups, dropped=())

    for over, num_flat in (("task", 0), ("group", 4)):
        values = {"dataset": str(path), "advantage": "grpo", "normalize_over": over}
        used = play_and_resample(LinkOfOneTask(always(""), SETTINGS.model_copy(update=values)))
        assert used.metrics["resample/flat_before"] == num_flat / 4


def test_a_resumed_run_asks_for_the_same_tasks_whatever_the_steps_before_it_needed() -> None:
    whole = Link(lambda task: "spread" if task % 3 else "flat")
    for step in range(3):
        play_and_resample(whole, step)
    resumed = Link(always("flat"))
    whole.rule = resumed.rule
    num_before = len(whole.asked)
    assert task_numbers(play_and_resample(whole).groups) == [12, 13, 14, 15]
    assert task_numbers(play_and_resample(resumed).groups) == [12, 13, 14, 15]
    assert whole.asked[num_before:] == resumed.asked
