"""Estimators against values worked out by hand."""

import pytest

from hanabi_grpo.training.advantages import (
    ESTIMATORS,
    choose_estimator,
    grpo,
    reinforce_pp,
    return_to_go,
    rloo,
    turn,
)
from hanabi_grpo.training.advantages.moving_baseline import moved, moving_baseline
from hanabi_grpo.training.advantages.step import step_advantages
from hanabi_grpo.types import Episode, Turn
from made_games import made_episode as _episode
from made_games import made_turn


def _turn(player: int, **rewards: float) -> Turn:
    return made_turn(player, rewards=rewards)


def _group() -> list[Episode]:
    return [
        _episode(_turn(0, score=1.0), _turn(1, score=1.0), _turn(0), score=2),
        _episode(_turn(0, illegal=-0.5), _turn(1), score=0),
        _episode(_turn(0, score=1.0), score=1),
    ]


def _other_group() -> list[Episode]:
    # Player 0 returns 3 and 0.
    return [
        _episode(_turn(0, score=1.0), _turn(1, score=2.0), score=3, seed=1),
        _episode(_turn(0), score=0, seed=1),
    ]


def test_grpo_normalises_the_players_return_within_the_deal() -> None:
    # Returns of player 0: 2, -0.5, 1; mean 0.8333, sample std 1.2583.
    first, second, third = grpo(_group(), 0)
    assert first == pytest.approx([0.92706, 0.92706], abs=1e-3)
    assert second == pytest.approx([-1.05957], abs=1e-3)
    assert third == pytest.approx([0.13244], abs=1e-3)


def test_a_player_without_a_turn_does_not_enter_its_baseline() -> None:
    # Player 1 moved in two games, with returns 2 and 0: mean 1, std sqrt(2).
    first, second, third = grpo(_group(), 1)
    assert first == pytest.approx([0.70706], abs=1e-3)
    assert second == pytest.approx([-0.70706], abs=1e-3)
    assert third == []


def test_turn_credit_puts_a_penalty_on_the_reply_that_earned_it_only() -> None:
    # Team returns of player 0's games: 2, 0, 1; mean 1, std 1.
    first, second, third = turn(_group(), 0)
    assert first == pytest.approx([1.0, 1.0], abs=1e-3)
    assert second == pytest.approx([-1.0 + 2.0 * -0.5], abs=1e-3)
    assert third == pytest.approx([0.0], abs=1e-3)


def test_leave_one_out_compares_a_game_with_the_others() -> None:
    # Returns 2, -0.5, 1: the others' means are 0.25, 1.5 and 0.75.
    assert rloo(_group(), 0) == [[1.75, 1.75], [-2.0], [0.25]]
    # Returns 2 and 0 of player 1.
    assert rloo(_group(), 1) == [[2.0], [-2.0], []]
    assert rloo(_group()[:1], 0) == [[0.0, 0.0]]


def test_return_to_go_counts_what_came_from_the_turn_on_and_whoever_earned_it() -> None:
    # Player 0's turns are followed by 2 and 0, by -0.5, and by 1, themselves included: mean 2.5 / 4 = 0.625.
    assert return_to_go(_group(), 0) == [[1.375, -0.625], [-1.125], [0.375]]
    # Player 1's by 1 and by 0; what player 0 scored before is not in it.
    assert return_to_go(_group(), 1) == [[0.5], [-0.5], []]
    # Squares 1.8906, 0.3906, 1.2656, 0.1406 sum to 3.6875; std sqrt(3.6875 / 3) = 1.10868.
    (first, _), _, _ = choose_estimator("return_to_go", "std")(_group(), 0)
    assert first == pytest.approx(1.24022, abs=1e-3)


def test_reinforce_pp_counts_a_game_as_often_as_it_has_turns() -> None:
    # Returns by turn: 2, 2, -0.5, 1; mean 1.125; squares 0.7656, 0.7656, 2.6406, 0.0156 sum to 4.1875, std 1.18145.
    first, second, third = reinforce_pp(_group(), 0)
    assert first == pytest.approx([0.74061, 0.74061], abs=1e-3)
    assert second == pytest.approx([-1.37543], abs=1e-3)
    assert third == pytest.approx([-0.10580], abs=1e-3)
    assert choose_estimator("reinforce_pp", "none")(_group(), 0) == [[0.875, 0.875], [-1.625], [-0.125]]


def test_the_moving_baseline_is_that_of_the_steps_before() -> None:
    # Returns 2, -0.5, 1; without a step before, their mean is the baseline.
    assert moving_baseline({})(_group(), 0) == [
        pytest.approx([7 / 6] * 2),
        pytest.approx([-4 / 3]),
        pytest.approx([1 / 6]),
    ]
    known = {"player_0 x": 0.25, "player_0 y": 9.0, "player_1 x": 9.0}
    assert moving_baseline(known)(_group(), 0) == [[1.75, 1.75], [-0.75], [0.75]]
    # std of 2, -0.5, 1 is 1.25831.
    scaled = choose_estimator("baseline", "std", known)(_group(), 0)
    assert scaled[0] == pytest.approx([1.39065] * 2, abs=1e-3)


def test_the_baseline_moves_a_tenth_of_the_way_per_player_and_board() -> None:
    games = [*_group(), _episode(_turn(0, score=4.0), score=4, spec_hash="y")]
    first = moved({}, games, 0)
    assert first == {"player_0 x": pytest.approx(2.5 / 3), "player_0 y": 4.0}
    # Player 1 moved in two games on x, with returns 2 and 0, and in none on y: 0.9 * 3 + 0.1 * 1.
    assert moved({**first, "player_1 x": 3.0}, games, 1) == {**first, "player_1 x": pytest.approx(2.8)}
    assert moved(first, [], 0) == first


def test_a_mean_without_division_is_in_units_of_reward() -> None:
    assert choose_estimator("grpo", "none")(_group(), 0) == [
        pytest.approx([7 / 6, 7 / 6]),
        pytest.approx([-4 / 3]),
        pytest.approx([1 / 6]),
    ]
    assert choose_estimator("turn", "none")(_group(), 0) == [[1.0, 1.0], [-2.0], [0.0]]
    # RLOO, divided: 1.75 / (1.25831 + 1e-4).
    assert choose_estimator("rloo", "std")(_group(), 0)[0] == pytest.approx([1.39065] * 2, abs=1e-3)


def test_the_scale_is_that_of_the_source_unless_it_is_set() -> None:
    assert {name: one.scaled for name, one in ESTIMATORS.items()} == {
        "grpo": True,
        "turn": True,
        "return_to_go": False,
        "rloo": False,
        "reinforce_pp": True,
        "baseline": False,
    }
    assert choose_estimator("rloo") == rloo
    assert not choose_estimator("grpo", "none").scaled and choose_estimator("grpo", "std") == grpo


def test_groups_are_compared_apart_or_over_the_step_as_the_estimator_says() -> None:
    groups = [_group(), _other_group()]
    assert step_advantages(groups, 0, rloo) == [rloo(_group(), 0), [[3.0], [-3.0]]]
    # Over the step: turns with 2, 2, -0.5, 1 and 3, 0; mean 1.25.
    assert step_advantages(groups, 0, choose_estimator("reinforce_pp", "none")) == [
        [[0.75, 0.75], [-1.75], [-0.25]],
        [[1.75], [-1.25]],
    ]
    assert step_advantages([_group(), [], _other_group()], 0, rloo)[1] == []


def test_boards_are_never_compared() -> None:
    easy, hard = _episode(_turn(0, score=1.0), score=1), _episode(_turn(0, score=25.0), score=25, spec_hash="y")
    for name in ESTIMATORS:
        assert step_advantages([[easy, easy], [hard, hard]], 0, ESTIMATORS[name]) == [[[0.0], [0.0]], [[0.0], [0.0]]]
        assert step_advantages([[easy, hard, easy]], 0, ESTIMATORS[name]) == [[[0.0], [0.0], [0.0]]]


def test_whitened_advantages_of_a_step_have_mean_0_and_deviation_1() -> None:
    # RLOO: 1.75, 1.75, -2, 0.25, 3, -3; mean 0.29167; squares sum to 28.1875, so the deviation is
    # sqrt((28.1875 - 6 * 0.29167^2) / 5) = 2.35275.
    found = step_advantages([_group(), _other_group()], 0, rloo, whiten=True)
    flat = [value for group in found for game in group for value in game]
    assert flat == pytest.approx([0.6198, 0.6198, -0.9740, -0.0177, 1.1511, -1.3990], abs=1e-3)
    assert [[len(game) for game in group] for group in found] == [[2, 1, 1], [1, 1]]
    assert step_advantages([[_group()[0]]], 0, grpo, whiten=True) == [[[0.0, 0.0]]]
    assert step_advantages([], 0, grpo, whiten=True) == []


def test_equal_games_give_no_advantage() -> None:
    group = [_episode(_turn(0, score=1.0), score=1) for _ in range(4)]
    for name, estimator in ESTIMATORS.items():
        assert estimator(group, 0) == [[0.0]] * 4, name
