"""What holds for every estimator, whatever was played."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.training.advantages import ESTIMATORS, Estimator, choose_estimator
from hanabi_grpo.training.advantages.moving_baseline import moving_baseline
from hanabi_grpo.training.advantages.step import step_advantages
from hanabi_grpo.types import Episode, Turn
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
        made_episode(*(made_turn(player, rewards=rewards) for player, rewards in turns), game=number)
        for number, turns in enumerate(games)
    ]


@pytest.mark.parametrize("estimator", ALL, ids=IDS)
@settings(deadline=None, max_examples=25)
@given(games=GAMES)
def test_each_own_turn_has_one_finite_value_and_absent_players_have_none(
    estimator: Estimator, games: list[list[tuple[int, dict[str, float]]]]
) -> None:
    episodes = build(games)
    for player in range(3):
        values = estimator(episodes, player)
        assert [len(game) for game in values] == [len(episode.trajectory(player)) for episode in episodes]
        assert all(math.isfinite(value) for game in values for value in game)
        for whiten in (False, True):
            (whole,) = step_advantages([episodes], player, estimator, whiten=whiten)
            assert [len(game) for game in whole] == [len(game) for game in values]
            assert all(math.isfinite(value) for game in whole for value in game)


@pytest.mark.parametrize("estimator", ALL, ids=IDS)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, data=st.data())
def test_the_order_of_games_changes_nothing_but_the_order(
    estimator: Estimator, games: list[list[tuple[int, dict[str, float]]]], data: st.DataObject
) -> None:
    episodes = build(games)
    order = data.draw(st.permutations(range(len(episodes))))
    values = estimator(episodes, 0)
    for place, game in zip(order, estimator([episodes[one] for one in order], 0), strict=True):
        assert game == pytest.approx(values[place], rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("estimator", ALL, ids=IDS)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, data=st.data())
def test_what_another_player_is_charged_for_changes_nothing(
    estimator: Estimator, games: list[list[tuple[int, dict[str, float]]]], data: st.DataObject
) -> None:
    episodes = build(games)

    def charged(turn: Turn) -> Turn:
        own = data.draw(st.sampled_from((0.0, -0.5, -100.0)))
        return turn if turn.player == 0 else replace(turn, rewards={**turn.rewards, "illegal": own})

    other = [replace(episode, turns=tuple(map(charged, episode.turns))) for episode in episodes]
    assert estimator(other, 0) == estimator(episodes, 0)


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
