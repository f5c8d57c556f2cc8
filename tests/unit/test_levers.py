"""The lever game: one convention of many, and names that differ under Other-Play."""

import itertools
from typing import Any

import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.conformance import check, check_symmetries
from hanabi_grpo.envs.levers import LEVERS, LEVERS_GAME, num_orders, order
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.types import Episode

NUM_TASKS = 300


def levers(**fields: Any) -> Any:
    return registry.setup("levers", {"preset": "levers", **fields})


def played(setup: Any, *scripts: str) -> list[Episode]:
    policies = {}
    for player, name in enumerate(scripts):
        policies[player] = setup.environment.policies[name]()
    return [play_scripts(setup.task("eval", seed), policies) for seed in range(NUM_TASKS)]


def scores(setup: Any, *scripts: str) -> list[float]:
    return [episode.result["paid"] for episode in played(setup, *scripts)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("other_play", [False, True])
def test_the_lever_game_conforms(style: str, other_play: bool) -> None:
    config = levers(style=style, other_play=other_play).config
    report = check(LEVERS_GAME, config)
    assert set(report.secrets) == ({"names"} if other_play else set())


@pytest.mark.parametrize("num_levers", [2, 3, 10])
def test_renamed_levers_are_the_same_game(num_levers: int) -> None:
    check_symmetries(LEVERS_GAME, levers(levers=num_levers).config)


def test_orders_are_all_permutations_of_the_equal_levers() -> None:
    orders = [order(number, 5) for number in range(num_orders(5))]
    expected = [(*names, 4) for names in itertools.permutations(range(4))]
    assert orders == expected


def test_a_pair_is_paid_for_the_same_lever_only() -> None:
    setup = levers()
    assert set(scores(setup, "first", "first")) == {1.0}
    assert set(scores(setup, "last", "last")) == {0.9}
    assert set(scores(setup, "first", "last")) == {0.0}


def test_under_other_play_only_the_last_lever_is_a_convention() -> None:
    setup = levers(other_play=True)
    assert set(scores(setup, "last", "last")) == {0.9}
    # The first name is the same lever for both players in one of nine games.
    assert mean(scores(setup, "first", "first")) == pytest.approx(1 / 9, abs=0.05)
    assert setup.spec.attainable == 0.9
    assert setup.spec.hash != levers().spec.hash


def test_the_names_are_drawn_for_each_task_and_each_player() -> None:
    for other_play, num_starts in ((True, 50), (False, 1)):
        config = levers(other_play=other_play).config
        starts = set()
        for seed in range(50):
            starts.add(LEVERS_GAME.start_id(config, split="train", seed=seed))
        assert len(starts) == num_starts


def test_figures_tell_a_convention_from_random_play() -> None:
    setup = levers()
    figures = setup.metrics(played(setup, "last", "last"))
    assert (figures["same_lever"], figures["both_last"]) == (1.0, 1.0)
    assert figures["favourite/player_0"] == figures["favourite/player_1"] == 1.0
    assert setup.metrics(played(setup, "random", "random"))["favourite/player_1"] < 0.2


def test_a_reply_names_a_lever_of_this_game() -> None:
    setup = levers(levers=3)
    game = LEVERS_GAME.reset(setup.config, split="eval", seed=0)
    assert game.legal(0) == LEVERS[:3]
    assert game.parse(0, "I take the second one.\nbravo") == "bravo"
    assert game.parse(1, "juliett") is None
