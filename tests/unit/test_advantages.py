"""A step's advantages: which games are compared, and what is remembered for the next step."""

import pytest

from hanabi_grpo.training.advantages import next_estimator_state, step_advantages
from hanabi_grpo.training.estimators import ESTIMATORS, make_estimator
from hanabi_grpo.types import Turn
from made_games import made_episode, made_turn


def _turn(player: int, **rewards: float) -> Turn:
    return made_turn(player, rewards=rewards)


GROUP = [
    made_episode(_turn(0, score=1.0), _turn(1, score=1.0), _turn(0), score=2),
    made_episode(_turn(0, illegal=-0.5), _turn(1), score=0),
    made_episode(_turn(0, score=1.0), score=1),
]
"""Returns of player 0: 2, −0.5, 1."""
OTHER = [
    made_episode(_turn(0, score=1.0), _turn(1, score=2.0), score=3, seed=1),
    made_episode(_turn(0), score=0, seed=1),
]
"""Returns of player 0: 3, 0."""
OWN = ("player_0@3", "player_1@3")


def test_a_group_estimator_compares_each_group_apart() -> None:
    rloo = make_estimator("rloo")
    assert step_advantages([GROUP, [], OTHER], 0, rloo) == [
        rloo.advantages(GROUP, 0),
        [],
        [[3.0], [-3.0]],
    ]


def test_a_step_estimator_compares_all_games_of_the_step() -> None:
    # Turns with 2, 2, −0.5, 1 and 3, 0; mean 1.25.
    reinforce_pp = make_estimator("reinforce_pp", scale="none")
    assert step_advantages([GROUP, OTHER], 0, reinforce_pp) == [
        [[0.75, 0.75], [-1.75], [-0.25]],
        [[1.75], [-1.25]],
    ]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_games_of_different_boards_are_never_compared(name: str) -> None:
    estimator = make_estimator(name)
    easy = made_episode(_turn(0, score=1.0), score=1)
    hard = made_episode(_turn(0, score=25.0), score=25, spec_hash="y")
    assert step_advantages([[easy, easy], [hard, hard]], 0, estimator) == [
        [[0.0], [0.0]],
        [[0.0], [0.0]],
    ]
    assert step_advantages([[easy, hard, easy]], 0, estimator) == [[[0.0], [0.0], [0.0]]]


def test_baselines_hold_the_trained_seats_games_only() -> None:
    baseline = make_estimator("baseline")
    alone = made_episode(_turn(0, score=1.0), _turn(1, score=1.0), seats=OWN)
    with_bot = made_episode(_turn(0), _turn(1), seats=(OWN[0], "iggi"))
    state = next_estimator_state(baseline, {}, [[alone], [with_bot]], OWN)
    assert state == {"player_0 x": 1.0, "player_1 x": 2.0}
    # A game that ended before player 1's turn says nothing of player 1.
    short = made_episode(_turn(0, score=4.0))
    assert next_estimator_state(baseline, state, [[short]], OWN) == {
        "player_0 x": pytest.approx(1.3),
        "player_1 x": 2.0,
    }


def test_an_estimator_without_memory_leaves_nothing_for_the_next_step() -> None:
    before = {"player_0 x": 1.5}
    assert next_estimator_state(make_estimator("turn"), before, [GROUP], OWN) == {}
