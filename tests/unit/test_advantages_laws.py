"""What holds for every estimator, whatever was played."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.training.advantages import ESTIMATORS, Estimator, choose_estimator
from hanabi_grpo.training.advantages.estimators import moving_baseline
from hanabi_grpo.training.advantages.step import step_advantages
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

ALL = [choose_estimator(name, scale) for name in ESTIMATORS for scale in ("std", "none")] + [
    moving_baseline({"player_0 x": 1.5, "player_1 x": -2.0})
]
IDS = [f"{one.name}-{'std' if one.scaled else 'none'}-{number}" for number, one in enumerate(ALL)]
REWARDS = st.one_of(
    st.just({}),
    st.builds(lambda value: {"score": value}, st.sampled_from((1.0, 2.0, -3.0, 1e-9, 1e6))),
    st.builds(lambda value: {"illegal": value}, st.sampled_from((-0.5, -4.0))),
    st.just({"score": 1.0, "length": -0.25}),
)
GAMES = st.lists(st.lists(st.tuples(st.integers(0, 1), REWARDS), max_size=6), max_size=5)


def build(games: list[list[tuple[int, dict[str, float]]]]) -> list[Episode]:
    return [
        made_episode(*(made_turn(player, rewards=rewards, num_players=3) for player, rewards in turns), game=number)
        for number, turns in enumerate(games)
    ]


@pytest.mark.parametrize("estimator", ALL, ids=IDS)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, data=st.data())
def test_each_own_turn_has_one_finite_value_that_neither_order_nor_anothers_penalty_changes(
    estimator: Estimator, games: list[list[tuple[int, dict[str, float]]]], data: st.DataObject
) -> None:
    episodes = build(games)
    for player in range(3):
        values = estimator(episodes, player)
        (whole,) = step_advantages([episodes], player, estimator, whiten=True)
        for found in (values, whole):
            assert [len(game) for game in found] == [len(episode.trajectory(player)) for episode in episodes]
            assert all(math.isfinite(value) for game in found for value in game)
    values = estimator(episodes, 0)
    order = data.draw(st.permutations(range(len(episodes))))
    for place, game in zip(order, estimator([episodes[one] for one in order], 0), strict=True):
        assert game == pytest.approx(values[place], rel=1e-6, abs=1e-3)
    penalty = st.sampled_from((0.0, -0.5, -100.0))
    charged = [
        [(player, {**parts, "illegal": data.draw(penalty)} if player else parts) for player, parts in turns]
        for turns in games
    ]
    assert estimator(build(charged), 0) == values


@pytest.mark.parametrize("estimator", [one for one in ALL if one.name != "baseline"], ids=lambda one: one.name)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, shift=st.sampled_from((1.0, -7.5, 100.0)))
def test_a_constant_for_every_game_changes_nothing(
    estimator: Estimator, games: list[list[tuple[int, dict[str, float]]]], shift: float
) -> None:
    # At the end of the game, so that a return-to-go has it at every turn.
    after = [[*turns, (1, {"score": shift})] for turns in games]
    before = [[*turns, (1, {})] for turns in games]
    for game, moved in zip(estimator(build(before), 0), estimator(build(after), 0), strict=True):
        assert moved == pytest.approx(game, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("estimator", ALL, ids=IDS)
def test_numbers_too_large_to_compare_are_never_a_quiet_zero(estimator: Estimator) -> None:
    small = build([[(0, {"score": 1.0})], [(0, {"score": 0.0})]])
    huge = build([[(0, {"score": 1e308})], [(0, {"score": 1e308})], [(0, {})]])
    assert estimator(small, 0) != [[0.0], [0.0]]
    flat = [value for game in estimator(huge, 0) for value in game]
    assert any(not math.isfinite(value) or abs(value) > 0.1 for value in flat)
    high = [value for game in estimator(build([[(0, {"score": 1e200})], [(0, {})]]), 0) for value in game]
    assert any(not math.isfinite(value) or abs(value) > 0.1 for value in high)
