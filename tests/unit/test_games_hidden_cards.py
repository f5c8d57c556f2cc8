"""A player's view does not depend on its own hidden cards."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.rules import Action, Game, make_spec
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hidden_cards import swap_own_cards


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_the_view_of_a_player_is_the_same_with_other_hidden_cards(preset: str, num_players: int, seed: int) -> None:
    rng = random.Random(seed)
    game = random_game(make_spec(preset, num_players), rng)
    for player in range(num_players):
        other = swap_own_cards(game, player, rng)
        if other is not None:
            assert other.hands[player] != game.hands[player]
            assert other.events == game.events
            assert other.view(player) == game.view(player)


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_the_swap_finds_other_hands_often_enough_to_mean_something(preset: str, num_players: int) -> None:
    rng = random.Random(5)
    games = [random_game(make_spec(preset, num_players), rng) for _ in range(40)]
    num_swapped = sum(swap_own_cards(game, player, rng) is not None for game in games for player in range(num_players))
    # Full boards: 9 of 10 positions. Five players with one card each on 2x2, fewest of all: about 1 of 6.
    assert num_swapped >= 0.1 * len(games) * num_players


def test_a_partner_sees_the_swap() -> None:
    rng = random.Random(1)
    spec = make_spec("full", 3)
    game = Game(spec, sorted_deck(5, 5))
    other = swap_own_cards(game, 0, rng)
    assert other is not None
    assert other.view(1).hands[0] != game.view(1).hands[0]


def test_no_swap_is_found_when_hints_have_told_everything() -> None:
    spec = make_spec("mini", 5)
    game = Game(spec, sorted_deck(2, 2))  # R1 R1 R1 R2 Y1, one card each
    game.apply(Action("hint_color", target=3, value=0))
    game.apply(Action("hint_rank", target=3, value=1))
    assert swap_own_cards(game, 3, random.Random(0)) is None
