"""Further tasks in the place of flat ones: a link that plays by a script, and nothing of
ms-swift.
"""

import pickle
from collections.abc import Callable, Sequence

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.datasets import FURTHER_APART, tasks, training_rows
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.resampling import UsedGames, resample
from hanabi_grpo.types import DroppedGame, Episode
from made_games import made_episode, made_turn

OWN = ("player_0@3", "player_1@3")
SETTINGS = Settings(tasks_per_step=4, num_generations=2, task_seed=1, resample_flat=2)
Rule = Callable[[int], str]
"""Number of a task in the run -> "spread", "flat", "partner" (spread of player 1 alone) or
"lost".
"""


class Link:
    """Plays two games of a task as a rule says."""

    def __init__(self, rule: Rule, settings: Settings = SETTINGS) -> None:
        self.settings, self._rule = settings, rule
        self.asked: list[list[int]] = []

    def play(self, tasks: Sequence[TaskRow], names: tuple[str, ...], version: int) -> RolloutResult:
        assert (names, version) == (("player_0", "player_1"), 3)
        self.asked.append([task.number for task in tasks])
        groups, lost = [], []
        for task in tasks:
            kind = self._rule(task.number)
            games = [_game(task, number, kind) for number in range(2)]
            if kind == "lost":
                lost.append(DroppedGame(suite=task.suite, seed=task.seed, game=1, reason="planted"))
            groups.append(games[:1] if kind == "lost" else games)
        return RolloutResult(groups=groups, dropped=tuple(lost))


def _game(task: TaskRow, number: int, kind: str) -> Episode:
    score = float(number if kind == "spread" else 1)
    penalty = {"illegal": -0.5} if kind == "partner" and number else {}
    turns = (made_turn(0, rewards={"score": score}), made_turn(1, rewards=penalty))
    return made_episode(*turns, suite=task.suite, seed=task.seed, game=number, seats=OWN)


def used(link: Link, step: int = 3, trained: Sequence[str] = OWN) -> UsedGames:
    own = tasks(training_rows(link.settings), step * 4, 4)
    assert [task.number for task in own] == list(range(4 * step, 4 * step + 4))
    names = ("player_0", "player_1")
    return resample(link, names, own, link.play(own, names, 3), version=3, trained=trained)


def numbers(groups: Sequence[Sequence[Episode]]) -> list[int]:
    """Return the numbers of the groups' tasks."""
    return [group[0].seed - 2**32 for group in groups]


def further(round_: int, *own: int) -> list[int]:
    return [number + round_ * FURTHER_APART for number in own]


def test_flat_deals_are_replaced_round_by_round_in_their_places_and_the_cost_is_counted() -> None:
    spread = {12, *further(1, 13), *further(2, 15)}
    link = Link(lambda task: "spread" if task in spread else "flat")
    found = used(link)
    assert link.asked == [[12, 13, 14, 15], further(1, 13, 14, 15), further(2, 14, 15)]
    assert numbers(found.drawn) == [12, 13, 14, 15]
    assert numbers(found.groups) == [12, *further(1, 13), 14, *further(2, 15)]
    seconds = found.metrics.pop("time/resample")
    assert seconds > 0
    assert found.metrics == {
        "resample/rounds": 2,
        "resample/games_played": 18,
        "resample/games_used": 8,
        "resample/flat_before": 0.75,
        "resample/flat_after": 0.25,
    }
    # The main process hands it to the other ranks.
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_full_step_asks_for_nothing_and_without_rounds_nothing_is_looked_at() -> None:
    link = Link(lambda task: "spread")
    found = used(link)
    assert len(link.asked) == 1 and found.groups == found.drawn
    assert (found.metrics["resample/rounds"], found.metrics["resample/flat_before"]) == (0, 0)
    off = Link(lambda task: "flat", SETTINGS.model_copy(update={"resample_flat": 0}))
    found = used(off)
    assert len(off.asked) == 1 and found.groups == found.drawn and found.metrics == {}


def test_where_all_is_flat_the_step_has_its_own_games() -> None:
    link = Link(lambda task: "flat")
    found = used(link)
    assert len(link.asked) == 3
    assert numbers(found.groups) == [12, 13, 14, 15]
    assert (found.metrics["resample/flat_before"], found.metrics["resample/flat_after"]) == (1, 1)


def test_lost_deals_are_replaced_too_by_a_flat_one_where_there_is_no_better() -> None:
    link = Link(
        lambda task: (
            "lost" if task in (12, *further(1, 13)) else "spread" if task in (14, 15) else "flat"
        )
    )
    found = used(link)
    assert link.asked == [[12, 13, 14, 15], further(1, 12, 13), further(2, 12, 13)]
    assert numbers(found.drawn) == [13, 14, 15]
    assert numbers(found.groups) == [*further(1, 12), 13, 14, 15]
    assert (found.metrics["resample/flat_before"], found.metrics["resample/flat_after"]) == (
        1 / 3,
        1 / 2,
    )
    assert len(found.problems) == 2 and all(
        "1 of 2 games dropped (game 1: planted)" in one for one in found.problems
    )


def test_spread_of_a_player_that_does_not_learn_is_none() -> None:
    assert used(Link(lambda task: "partner")).metrics["resample/rounds"] == 0
    assert used(Link(lambda task: "partner"), trained=(OWN[0], "")).metrics["resample/rounds"] == 2


def test_a_resumed_run_asks_for_the_same_deals_whatever_the_steps_before_it_needed() -> None:
    whole, resumed = Link(lambda task: "spread" if task % 3 else "flat"), Link(lambda task: "flat")
    for step in range(3):
        used(whole, step)
    whole._rule = resumed._rule
    before = len(whole.asked)
    assert numbers(used(whole).groups) == numbers(used(resumed).groups) == [12, 13, 14, 15]
    assert whole.asked[before:] == resumed.asked
