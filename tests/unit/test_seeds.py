"""The seeds of sampled replies: what they depend on, and what they do not."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fake_engine import (
    LAPTOP,
    SAMPLING,
    StubSampler,
    make_scheduler,
    sample,
    task_row,
    tasks_of,
)
from fake_engine import task as task_request
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import FURTHER_APART, REPLACEMENT
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.rollout.seeds import SEED_LIMIT, reply_seed, request_seed, seat_seed
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.link import training_seed
from hanabi_grpo.types import Episode

BOARD = Setup(HANABI, LAPTOP)
WORDS = ("Play 0", "Play 1", "Hint R", "Hint 1", "Discard 0", "Discard 1")


def test_seeds_are_the_same_on_every_machine_and_for_ever() -> None:
    request = request_seed(42, "training", 7, 0)
    assert request == 7297008269718119950
    seat = seat_seed(request, BOARD.task("train", 3), game=5, player=1)
    assert seat == 27097797873932002, "or the rules or prompts of this board have changed"
    assert reply_seed(seat, 2) == 9105113009238073364


def test_each_game_seat_and_turn_of_each_request_has_a_seed_of_its_own() -> None:
    seeds = []
    for request in (request_seed(1, "training", 0), request_seed(1, "training", 1)):
        for suite in ("train", "eval"):
            for number in range(4):
                task = BOARD.task(suite, number)
                for game in range(16):
                    for player in range(2):
                        seat = seat_seed(request, task, game, player)
                        seeds += [reply_seed(seat, turn) for turn in range(4)]
    assert len(set(seeds)) == len(seeds) == 2 * 2 * 4 * 16 * 2 * 4
    assert min(seeds) >= 0
    assert max(seeds) < SEED_LIMIT


def test_another_board_with_the_same_task_number_has_other_seeds() -> None:
    mini = Setup(HANABI, LAPTOP.model_copy(update={"preset": "mini"}))
    assert seat_seed(1, BOARD.task("train", 3), 0, 0) != seat_seed(1, mini.task("train", 3), 0, 0)


def rows(*numbers: int) -> list[TaskRow]:
    """Tasks of a run with these numbers, all of one start: a dataset with a single seed."""
    return [replace(task_row(5), number=number) for number in numbers]


def test_a_task_that_comes_again_in_a_later_step_or_round_is_sampled_anew() -> None:
    settings = Settings(tasks_per_step=3, seed=42)
    first = training_seed(settings, rows(0, 1, 2))
    seeds = [
        first,
        training_seed(settings, rows(3, 4, 5)),
        training_seed(settings, rows(FURTHER_APART + 1)),
        training_seed(settings, rows(2 * FURTHER_APART + 1)),
        training_seed(settings.model_copy(update={"seed": 43}), rows(0, 1, 2)),
    ]
    assert len(set(seeds)) == 5


@pytest.mark.parametrize("further", [0, FURTHER_APART])
def test_each_servers_share_of_a_step_has_the_seed_of_the_step(further: int) -> None:
    settings = Settings(tasks_per_step=3)
    of_step = rows(further + 6, further + 7, further + 8)
    shares = (of_step[:1], of_step[1:], of_step[2:])
    assert {training_seed(settings, share) for share in shares} == {
        training_seed(settings, of_step)
    }


def test_a_share_with_nothing_but_the_replacement_of_a_late_task_has_the_seed_of_the_step() -> None:
    settings = Settings(tasks_per_step=3)
    of_step = rows(6, REPLACEMENT * FURTHER_APART + 7, 8)
    assert {training_seed(settings, [task]) for task in of_step} == {
        training_seed(settings, rows(6, 7, 8))
    }


class SeededEngine(StubSampler):
    """Replies by the seed of the request alone."""

    def __init__(self, *, passes: int = 0, fails_once: bool = False) -> None:
        """Begin.

        Args:
            passes: Passes of the event loop that some replies take longer than others.
            fails_once: Whether the third reply fails.
        """
        self.seeds: list[int | None] = []
        self._passes = passes
        self._fails_once = fails_once

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        self.seeds.append(sampling.seed)
        if self._fails_once and len(self.seeds) == 3:
            raise RuntimeError("planted")
        seed = sampling.seed or 0
        for _ in range(seed % 5 * self._passes):
            await asyncio.sleep(0)
        return sample(WORDS[seed % len(WORDS)])


def play(
    engine: SeededEngine, tasks: list[RequestedTask], *, seed: int | None = 9, **places: Any
) -> list[list[Episode]]:
    """Play tasks; the episodes of each."""

    async def scenario() -> list[list[Episode]]:
        scheduler = make_scheduler(engine, **places)
        groups = await scheduler.run(tasks, replace(SAMPLING, seed=seed))
        episodes = []
        for group in groups:
            episodes.append([game for game in group if isinstance(game, Episode)])
        return episodes

    return asyncio.run(scenario())


TASKS = [task_request(seed) for seed in range(4)]


def test_a_game_depends_on_its_seed_and_on_nothing_else_that_happens() -> None:
    expected = play(SeededEngine(), tasks_of(*TASKS, num_games=4))
    assert [len(group) for group in expected] == [4, 4, 4, 4]
    # Beside other games, in another order, and one after the other.
    crowded = play(SeededEngine(passes=3), tasks_of(*TASKS, num_games=4), games_at_once=5)
    assert crowded == expected
    reversed_tasks = play(SeededEngine(), tasks_of(*TASKS[::-1], num_games=4))
    assert reversed_tasks[::-1] == expected
    alone = play(SeededEngine(), tasks_of(TASKS[2], num_games=4), games_at_once=1)
    assert alone == expected[2:3]


def test_the_games_of_a_group_differ_and_so_do_those_of_another_seed() -> None:
    [group] = play(SeededEngine(), tasks_of(TASKS[0], num_games=16))
    played = Counter(tuple(turn.reply for turn in episode.turns) for episode in group)
    assert len(played) > 12
    [other] = play(SeededEngine(), tasks_of(TASKS[0], num_games=16), seed=10)
    assert other != group


def test_a_task_that_is_named_twice_has_other_games_in_its_second_group() -> None:
    twice = play(SeededEngine(), tasks_of(TASKS[0], TASKS[0], num_games=4))
    assert [turn.reply for turn in twice[0][0].turns] != [turn.reply for turn in twice[1][0].turns]


def test_a_game_that_failed_is_the_same_game_when_it_is_played_again() -> None:
    expected = play(SeededEngine(), tasks_of(TASKS[0], num_games=2))
    assert play(SeededEngine(fails_once=True), tasks_of(TASKS[0], num_games=2)) == expected


def test_a_request_without_a_seed_leaves_its_replies_to_chance() -> None:
    engine = SeededEngine()
    play(engine, tasks_of(TASKS[0]), seed=None)
    assert set(engine.seeds) == {None}
