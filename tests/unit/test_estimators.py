"""Estimators: values worked out by hand, and laws that hold for every one, whatever was played."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doctor_machines import ROOT
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.training.advantages import step_advantages
from hanabi_grpo.training.estimators import (
    ESTIMATORS,
    GROUP_ESTIMATORS,
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Learned,
    Scale,
    estimators_table,
    make_estimator,
    names_needing,
)
from hanabi_grpo.training.estimators.normalization import Method, normalize
from hanabi_grpo.types import Episode, Lesson, Turn
from made_games import made_episode, made_turn


def _turn(player: int, **rewards: float) -> Turn:
    return made_turn(player, rewards=rewards)


GROUP = [
    made_episode(_turn(0, score=1.0), _turn(1, score=1.0), _turn(0), score=2),
    made_episode(_turn(0, illegal=-0.5), _turn(1), score=0),
    made_episode(_turn(0, score=1.0), score=1),
]
"""Returns of player 0: 2, −0.5, 1; of player 1, which has no turn in the third game: 2, 0."""
EARLIER_STEPS = EstimatorContext(
    state={"player_0 x": 0.25, "player_0 y": 9.0, "player_1 x": 9.0},
)
"""Moving baselines, of which the first is of player 0 on the board of these games."""


def assert_advantages(
    name: str, player: int, expected: list[list[float]], scale: Scale | None = None
) -> None:
    """Compare an estimator's advantages of the group's games."""
    found = make_estimator(name, scale=scale).advantages(GROUP, player, EARLIER_STEPS)
    assert found == [pytest.approx(game, abs=1e-3) for game in expected]


def test_grpo_compares_with_the_mean_and_divides() -> None:
    # Mean 0.8333, sample deviation 1.2583.
    assert_advantages("grpo", 0, [[0.92706] * 2, [-1.05957], [0.13244]])
    assert_advantages("grpo", 0, [[7 / 6] * 2, [-4 / 3], [1 / 6]], "none")
    # A player without a turn does not enter its baseline: mean 1, deviation sqrt(2).
    assert_advantages("grpo", 1, [[0.70706], [-0.70706], []])


def test_turn_charges_a_penalty_to_the_reply_that_earned_it() -> None:
    # The game's returns are 2, 0, 1, the others' means 0.5, 1.5, 1; the penalty is on the reply
    # that earned it, and the others' turns have −0.25, 0, −1/6 of it on average.
    assert_advantages("turn", 0, [[1.75, 1.75], [-2.0], [1 / 6]], "none")
    # Deviations 1 and 0.25: hypot(1, 0.25) = 1.03078.
    assert_advantages("turn", 0, [[1.69758, 1.69758], [-1.94010], [0.16168]])
    assert_advantages("turn", 1, [[2.0], [-2.0], []], "none")


def test_rloo_compares_with_the_mean_of_the_other_games() -> None:
    # The others' means are 0.25, 1.5 and 0.75.
    assert_advantages("rloo", 0, [[1.75, 1.75], [-2.0], [0.25]])
    assert_advantages("rloo", 1, [[2.0], [-2.0], []])
    assert_advantages("rloo", 0, [[1.39065] * 2, [-1.58932], [0.19866]], "std")


def test_state_baseline_compares_turns_of_the_same_state() -> None:
    # All are shown and say the same. What comes from the first turns on is 2, −0.5, 1; the second
    # turn, which 0 follows, is the only one of its state and of its number: the mean of all turns
    # of the others, 0.25.
    assert_advantages("state_baseline", 0, [[1.75, -0.25], [-2.0], [0.25]])
    assert_advantages("state_baseline", 0, [[1.57829, -0.22547], [-1.80378], [0.22547]], "std")


def test_state_baseline_reads_a_move_of_the_teacher_like_the_players_own() -> None:
    first = replace(made_turn(0), prompt_ids=(1, 2), reply_ids=(7,))
    taught = replace(
        first, prompt_ids=(1, 2, 7), reply_ids=(), lesson=Lesson(reply_ids=(7,), plays=True)
    )
    other = replace(first, reply_ids=(6,))
    seconds = []
    for score in (1.0, 0.0, 5.0):
        second = made_turn(0, rewards={"score": score})
        seconds.append(replace(second, prompt_ids=(3,), reply_ids=(8,)))
    own = [
        made_episode(start, end) for start, end in zip((first, first, other), seconds, strict=True)
    ]
    with_teacher = [own[0], made_episode(taught, seconds[1]), own[2]]
    estimator = make_estimator("state_baseline")
    expected = estimator.advantages(own, 0, NOTHING_KNOWN)
    # Only the second game has the same history before the second turn.
    assert expected[0][1] == 1.0
    assert estimator.advantages(with_teacher, 0, NOTHING_KNOWN)[0] == expected[0]


def test_return_to_go_compares_what_comes_from_each_turn_on() -> None:
    # Player 0's turns are followed by 2 and 0, by −0.5, and by 1, themselves included: mean 2.5 / 4
    # = 0.625.
    assert_advantages("return_to_go", 0, [[1.375, -0.625], [-1.125], [0.375]])
    # Player 1's by 1 and by 0; what player 0 scored before is not in it.
    assert_advantages("return_to_go", 1, [[0.5], [-0.5], []])
    # Squares 1.8906, 0.3906, 1.2656, 0.1406 sum to 3.6875; deviation sqrt(3.6875 / 3) = 1.10868.
    assert_advantages("return_to_go", 0, [[1.24010, -0.56368], [-1.01463], [0.33821]], "std")


def test_reinforce_pp_normalizes_over_turns() -> None:
    # Returns by turn: 2, 2, −0.5, 1; mean 1.125, deviation sqrt(4.1875 / 3) = 1.18145.
    assert_advantages("reinforce_pp", 0, [[0.74061] * 2, [-1.37543], [-0.10580]])
    assert_advantages("reinforce_pp", 0, [[0.875, 0.875], [-1.625], [-0.125]], "none")


def test_baseline_compares_with_earlier_steps() -> None:
    # The baseline of the steps before, 0.25.
    assert_advantages("baseline", 0, [[1.75, 1.75], [-0.75], [0.75]])
    assert_advantages("baseline", 0, [[1.39065] * 2, [-0.59600], [0.59600]], "std")


def test_the_baseline_moves_a_tenth_of_the_way_per_player_and_board() -> None:
    baseline = make_estimator("baseline")
    games = [*GROUP, made_episode(_turn(0, score=4.0), score=4, spec_hash="y")]
    first = baseline.next_state({}, games, 0)
    assert first == {"player_0 x": pytest.approx(2.5 / 3), "player_0 y": 4.0}
    # Player 1 moved in two games on x, with returns 2 and 0, and in none on y: 0.9 * 3 + 0.1 * 1.
    assert baseline.next_state({**first, "player_1 x": 3.0}, games, 1) == {
        **first,
        "player_1 x": pytest.approx(2.8),
    }
    assert baseline.next_state(first, [], 0) == first


def test_a_player_in_another_seat_has_a_baseline_of_its_own_there() -> None:
    baseline = make_estimator("baseline")
    swapped = [replace(game, seats=("player_1@7", "player_0@7")) for game in GROUP]
    earlier = {"player_0 x": 9.0, "player_1 in player_0 x": 0.25}
    context = EstimatorContext(state=earlier)
    # The seat's returns are 2, -0.5 and 1, and player_1 has earned 0.25 there.
    assert baseline.advantages(swapped, 0, context) == [[1.75, 1.75], [-0.75], [0.75]]
    after = baseline.next_state(earlier, swapped, 0)
    assert after["player_0 x"] == 9.0
    assert after["player_1 in player_0 x"] == pytest.approx(0.9 * 0.25 + 0.1 * 2.5 / 3)
    # One adapter for all: its seats are told apart.
    shared = [replace(game, seats=("shared@7", "shared@7")) for game in GROUP]
    assert baseline.next_state({}, shared, 0) == {"player_0 x": pytest.approx(2.5 / 3)}


def test_no_other_estimator_remembers_anything() -> None:
    for name in ESTIMATORS:
        if name != "baseline":
            assert make_estimator(name).next_state(EARLIER_STEPS.state, GROUP, 0) == {}


def test_without_anything_to_compare_with_there_is_no_advantage() -> None:
    assert make_estimator("rloo").advantages(GROUP[:1], 0) == [[0.0, 0.0]]
    # Without a step before, the mean of these games is the baseline.
    first_step = make_estimator("baseline").advantages(GROUP, 0)
    assert first_step == make_estimator("grpo", scale="none").advantages(GROUP, 0)
    for name in ESTIMATORS:
        games = [made_episode(_turn(0, score=1.0), score=1)] * 4
        assert make_estimator(name).advantages(games, 0) == [[0.0]] * 4, name


def test_the_registry_finds_every_file_and_says_what_each_needs() -> None:
    shipped = {
        "grpo",
        "rloo",
        "state_baseline",
        "turn",
        "baseline",
        "reinforce_pp",
        "return_to_go",
        "ippo",
        "mappo",
        "vdn",
        "qmix",
    }
    assert shipped <= set(ESTIMATORS)
    assert {"grpo", "rloo", "state_baseline", "turn"} <= set(GROUP_ESTIMATORS)
    # A group whose games all earned the same teaches these something.
    assert not {"baseline", "reinforce_pp", "return_to_go", "ippo", "vdn"} & set(GROUP_ESTIMATORS)
    assert names_needing(Learned.CRITIC, Learned.CENTRAL_CRITIC) == ("ippo", "mappo")
    assert names_needing(Learned.CREDIT_SUM) == ("vdn",)
    assert names_needing(Learned.CREDIT_MIXER) == ("qmix",)
    for name, estimator in ESTIMATORS.items():
        assert estimator.name == name
        assert f"| `{name}`" in estimators_table()


def test_the_documentations_table_is_that_of_the_registry() -> None:
    page = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    [table] = re.findall(
        r"<!-- estimators:begin -->\n(.*?)<!-- estimators:end -->", page, flags=re.DOTALL
    )
    assert table == estimators_table(), (
        "put what estimators_table() returns between the marks of docs/learning.md"
    )


def test_an_estimator_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match=r"HANABI_ADVANTAGE=gae: .*allowed are grpo, "):
        make_estimator("gae")


CASES: list[tuple[Estimator, EstimatorContext]] = []
IDS: list[str] = []
for _name in ESTIMATORS:
    for _scale in ("std", "none"):
        CASES.append((make_estimator(_name, scale=_scale), NOTHING_KNOWN))
        IDS.append(f"{_name}-{_scale}")
CASES.append(
    (
        make_estimator("baseline"),
        EstimatorContext(state={"player_0 x": 1.5, "player_1 x": -2.0}),
    )
)
IDS.append("baseline-after-a-step")

REWARDS = st.one_of(
    st.just({}),
    st.builds(lambda value: {"score": value}, st.sampled_from((1.0, 2.0, -3.0, 1e-9, 1e6))),
    st.builds(lambda value: {"illegal": value}, st.sampled_from((-0.5, -4.0))),
    st.just({"score": 1.0, "length": -0.25}),
)
MadeGame = list[tuple[int, dict[str, float]]]
"""Player and rewards of each turn."""
GAMES = st.lists(st.lists(st.tuples(st.integers(0, 1), REWARDS), max_size=6), max_size=5)


def build(games: Sequence[MadeGame]) -> list[Episode]:
    episodes = []
    for number, turns in enumerate(games):
        made_turns = [
            made_turn(player, rewards=rewards, num_players=3) for player, rewards in turns
        ]
        episodes.append(made_episode(*made_turns, game=number))
    return episodes


def flat(values: list[list[float]]) -> list[float]:
    return [value for game in values for value in game]


@pytest.mark.parametrize(("estimator", "context"), CASES, ids=IDS)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, data=st.data())
def test_each_own_turn_has_one_finite_value_that_neither_order_nor_anothers_penalty_changes(
    estimator: Estimator, context: EstimatorContext, games: list[MadeGame], data: st.DataObject
) -> None:
    episodes = build(games)
    for player in range(3):
        values = estimator.advantages(episodes, player, context)
        [values_of_step] = step_advantages([episodes], player, estimator, context)
        for found in (values, values_of_step):
            assert [len(game) for game in found] == [
                len(episode.trajectory(player)) for episode in episodes
            ]
            assert all(math.isfinite(value) for value in flat(found))

    values = estimator.advantages(episodes, 0, context)
    order = data.draw(st.permutations(range(len(episodes))))
    reordered = estimator.advantages([episodes[number] for number in order], 0, context)
    for number, game in zip(order, reordered, strict=True):
        assert game == pytest.approx(values[number], rel=1e-6, abs=1e-3)

    penalties = st.sampled_from((0.0, -0.5, -100.0))
    charged: list[MadeGame] = []
    for turns in games:
        charged_turns: MadeGame = []
        for player, parts in turns:
            penalty = data.draw(penalties)
            charged_turns.append((player, {**parts, "illegal": penalty} if player else parts))
        charged.append(charged_turns)
    assert estimator.advantages(build(charged), 0, context) == values


WITHOUT_BASELINE = [case for case in CASES if case[0].name != "baseline"]


@pytest.mark.parametrize(
    ("estimator", "context"),
    WITHOUT_BASELINE,
    ids=[name for name in IDS if not name.startswith("baseline")],
)
@settings(deadline=None, max_examples=25)
@given(games=GAMES, shift=st.sampled_from((1.0, -7.5, 100.0)))
def test_a_constant_for_every_game_changes_nothing(
    estimator: Estimator, context: EstimatorContext, games: list[MadeGame], shift: float
) -> None:
    # At the end of the game, so that a return-to-go has it at every turn.
    before = build([[*turns, (1, {})] for turns in games])
    after = build([[*turns, (1, {"score": shift})] for turns in games])
    values = estimator.advantages(before, 0, context)
    shifted_values = estimator.advantages(after, 0, context)
    for game, shifted in zip(values, shifted_values, strict=True):
        assert shifted == pytest.approx(game, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize(("estimator", "context"), CASES, ids=IDS)
def test_numbers_too_large_to_compare_are_never_a_quiet_zero(
    estimator: Estimator, context: EstimatorContext
) -> None:
    small = build([[(0, {"score": 1.0})], [(0, {"score": 0.0})]])
    assert estimator.advantages(small, 0, context) != [[0.0], [0.0]]

    huge = build([[(0, {"score": 1e308})], [(0, {"score": 1e308})], [(0, {})]])
    high = build([[(0, {"score": 1e200})], [(0, {})]])
    for episodes in (huge, high):
        values = flat(estimator.advantages(episodes, 0, context))
        assert any(not math.isfinite(value) or abs(value) > 0.1 for value in values)


def test_equal_credits_are_not_divided_by_a_deviation_of_nothing() -> None:
    flat = normalize([[3.0], [3.0, 3.0]], Method.STD, once_a_game=False)
    assert flat == [[3.0], [3.0, 3.0]]
    assert normalize([[3.0], [3.0]], Method.MEAN_STD, once_a_game=False) == [[0.0], [0.0]]
    [[low], [high]] = normalize([[1.0], [3.0]], Method.STD, once_a_game=False)
    assert high == pytest.approx(3 * low)
    assert high < 3.0
