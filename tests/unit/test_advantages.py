"""Estimators against values worked out by hand, and what holds for every one, whatever was
played.
"""

import math
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.training.advantages import (
    ESTIMATORS,
    Estimator,
    choose_estimator,
    moved,
    step_advantages,
    token_weights,
)
from hanabi_grpo.types import Episode, Turn
from made_games import made_episode as _episode
from made_games import made_turn


def _turn(player: int, **rewards: float) -> Turn:
    return made_turn(player, rewards=rewards)


GROUP = [
    _episode(_turn(0, score=1.0), _turn(1, score=1.0), _turn(0), score=2),
    _episode(_turn(0, illegal=-0.5), _turn(1), score=0),
    _episode(_turn(0, score=1.0), score=1),
]
"""Returns of player 0: 2, −0.5, 1; of player 1, which has no turn in the third game: 2, 0."""
OTHER = [
    _episode(_turn(0, score=1.0), _turn(1, score=2.0), score=3, seed=1),
    _episode(_turn(0), score=0, seed=1),
]
"""Returns of player 0: 3, 0."""
RLOO = ESTIMATORS["rloo"]
KNOWN = {"player_0 x": 0.25, "player_0 y": 9.0, "player_1 x": 9.0}


@pytest.mark.parametrize(
    ("name", "scale", "player", "expected"),
    [
        # Mean 0.8333, sample deviation 1.2583.
        ("grpo", None, 0, [[0.92706] * 2, [-1.05957], [0.13244]]),
        ("grpo", "none", 0, [[7 / 6] * 2, [-4 / 3], [1 / 6]]),
        # A player without a turn does not enter its baseline: mean 1, deviation sqrt(2).
        ("grpo", None, 1, [[0.70706], [-0.70706], []]),
        # The game's returns are 2, 0, 1, the others' means 0.5, 1.5, 1; the penalty is on the reply
        # that earned it, and the others' turns have −0.25, 0, −1/6 of it on average. Deviations 1
        # and 0.25: hypot(1, 0.25) = 1.03078.
        ("turn", "none", 0, [[1.75, 1.75], [-2.0], [1 / 6]]),
        ("turn", None, 0, [[1.69758, 1.69758], [-1.94010], [0.16168]]),
        ("turn", "none", 1, [[2.0], [-2.0], []]),
        # The others' means are 0.25, 1.5 and 0.75.
        ("rloo", None, 0, [[1.75, 1.75], [-2.0], [0.25]]),
        ("rloo", None, 1, [[2.0], [-2.0], []]),
        ("rloo", "std", 0, [[1.39065] * 2, [-1.58932], [0.19866]]),
        # All are shown and say the same. What comes from the first turns on is 2, −0.5, 1; the
        # second turn, which 0 follows, is the only one of its state and of its number: the mean of
        # all turns of the others, 0.25.
        ("state_baseline", None, 0, [[1.75, -0.25], [-2.0], [0.25]]),
        ("state_baseline", "std", 0, [[1.57829, -0.22547], [-1.80378], [0.22547]]),
        # Player 0's turns are followed by 2 and 0, by −0.5, and by 1, themselves included: mean 2.5
        # / 4 = 0.625.
        ("return_to_go", None, 0, [[1.375, -0.625], [-1.125], [0.375]]),
        # Player 1's by 1 and by 0; what player 0 scored before is not in it.
        ("return_to_go", None, 1, [[0.5], [-0.5], []]),
        # Squares 1.8906, 0.3906, 1.2656, 0.1406 sum to 3.6875; deviation sqrt(3.6875 / 3) =
        # 1.10868.
        ("return_to_go", "std", 0, [[1.24010, -0.56368], [-1.01463], [0.33821]]),
        # Returns by turn: 2, 2, −0.5, 1; mean 1.125, deviation sqrt(4.1875 / 3) = 1.18145.
        ("reinforce_pp", None, 0, [[0.74061] * 2, [-1.37543], [-0.10580]]),
        ("reinforce_pp", "none", 0, [[0.875, 0.875], [-1.625], [-0.125]]),
        # The baseline of the steps before, 0.25.
        ("baseline", None, 0, [[1.75, 1.75], [-0.75], [0.75]]),
        ("baseline", "std", 0, [[1.39065] * 2, [-0.59600], [0.59600]]),
    ],
)
def test_advantages_are_those_worked_out_by_hand(
    name: str, scale: Literal["std", "none"] | None, player: int, expected: list[list[float]]
) -> None:
    found = choose_estimator(name, scale, KNOWN)(GROUP, player)
    assert found == [pytest.approx(game, abs=1e-3) for game in expected]


def test_without_anything_to_compare_with_there_is_no_advantage() -> None:
    assert RLOO(GROUP[:1], 0) == [[0.0, 0.0]]
    # Without a step before, the mean of these games is the baseline.
    assert choose_estimator("baseline")(GROUP, 0) == choose_estimator("grpo", "none")(GROUP, 0)
    for name, estimator in ESTIMATORS.items():
        assert estimator([_episode(_turn(0, score=1.0), score=1)] * 4, 0) == [[0.0]] * 4, name


def test_the_baseline_moves_a_tenth_of_the_way_per_player_and_board() -> None:
    games = [*GROUP, _episode(_turn(0, score=4.0), score=4, spec_hash="y")]
    first = moved({}, games, 0)
    assert first == {"player_0 x": pytest.approx(2.5 / 3), "player_0 y": 4.0}
    # Player 1 moved in two games on x, with returns 2 and 0, and in none on y: 0.9 * 3 + 0.1 * 1.
    assert moved({**first, "player_1 x": 3.0}, games, 1) == {
        **first,
        "player_1 x": pytest.approx(2.8),
    }
    assert moved(first, [], 0) == first


def test_groups_are_compared_apart_or_over_the_step_as_the_estimator_says_and_boards_never() -> (
    None
):
    assert step_advantages([GROUP, [], OTHER], 0, RLOO) == [RLOO(GROUP, 0), [], [[3.0], [-3.0]]]
    # Over the step: turns with 2, 2, −0.5, 1 and 3, 0; mean 1.25.
    assert step_advantages([GROUP, OTHER], 0, choose_estimator("reinforce_pp", "none")) == [
        [[0.75, 0.75], [-1.75], [-0.25]],
        [[1.75], [-1.25]],
    ]
    easy, hard = (
        _episode(_turn(0, score=1.0), score=1),
        _episode(_turn(0, score=25.0), score=25, spec_hash="y"),
    )
    for estimator in ESTIMATORS.values():
        assert step_advantages([[easy, easy], [hard, hard]], 0, estimator) == [[[0.0], [0.0]]] * 2
        assert step_advantages([[easy, hard, easy]], 0, estimator) == [[[0.0], [0.0], [0.0]]]


def test_weights_give_tokens_turns_or_sequences_equal_weight() -> None:
    turns = [[1, 4], [3], [0], []]
    assert token_weights(turns, "token") == [[1.0, 1.0], [1.0], [1.0], []]
    # 8 tokens in 3 turns: 8/3 for the turn of one token, 8/12, 8/9.
    assert token_weights(turns, "turn") == [
        [pytest.approx(8 / 3), pytest.approx(8 / 12)],
        [pytest.approx(8 / 9)],
        [0.0],
        [],
    ]
    # 8 tokens in 2 sequences of 5 and 3: 8/10, 8/6.
    assert token_weights(turns, "sequence") == [[0.8, 0.8], [pytest.approx(8 / 6)], [0.0], []]


ALL = [
    *(choose_estimator(name, scale) for name in ESTIMATORS for scale in ("std", "none")),
    choose_estimator("baseline", None, {"player_0 x": 1.5, "player_1 x": -2.0}),
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
        _episode(
            *(made_turn(player, rewards=rewards, num_players=3) for player, rewards in turns),
            game=number,
        )
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
        (whole,) = step_advantages([episodes], player, estimator)
        for found in (values, whole):
            assert [len(game) for game in found] == [
                len(episode.trajectory(player)) for episode in episodes
            ]
            assert all(math.isfinite(value) for game in found for value in game)
    values = estimator(episodes, 0)
    order = data.draw(st.permutations(range(len(episodes))))
    for place, game in zip(order, estimator([episodes[one] for one in order], 0), strict=True):
        assert game == pytest.approx(values[place], rel=1e-6, abs=1e-3)
    penalty = st.sampled_from((0.0, -0.5, -100.0))
    charged = [
        [
            (player, {**parts, "illegal": data.draw(penalty)} if player else parts)
            for player, parts in turns
        ]
        for turns in games
    ]
    assert estimator(build(charged), 0) == values


@pytest.mark.parametrize(
    "estimator", [one for one in ALL if one.name != "baseline"], ids=lambda one: one.name
)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, shift=st.sampled_from((1.0, -7.5, 100.0)))
def test_a_constant_for_every_game_changes_nothing(
    estimator: Estimator, games: list[list[tuple[int, dict[str, float]]]], shift: float
) -> None:
    # At the end of the game, so that a return-to-go has it at every turn.
    after = [[*turns, (1, {"score": shift})] for turns in games]
    before = [[*turns, (1, {})] for turns in games]
    for game, shifted in zip(estimator(build(before), 0), estimator(build(after), 0), strict=True):
        assert shifted == pytest.approx(game, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("estimator", ALL, ids=IDS)
def test_numbers_too_large_to_compare_are_never_a_quiet_zero(estimator: Estimator) -> None:
    small = build([[(0, {"score": 1.0})], [(0, {"score": 0.0})]])
    huge = build([[(0, {"score": 1e308})], [(0, {"score": 1e308})], [(0, {})]])
    assert estimator(small, 0) != [[0.0], [0.0]]
    flat = [value for game in estimator(huge, 0) for value in game]
    assert any(not math.isfinite(value) or abs(value) > 0.1 for value in flat)
    high = [
        value
        for game in estimator(build([[(0, {"score": 1e200})], [(0, {})]]), 0)
        for value in game
    ]
    assert any(not math.isfinite(value) or abs(value) > 0.1 for value in high)
