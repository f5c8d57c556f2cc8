"""No prompt depends on the cards that its player cannot see."""

import random

import pytest
from boards import ALL_BOARDS, random_game
from hidden_cards import swap_own_cards
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.games import Card, Game, make_spec
from hanabi_grpo.prompts import turn_prompt


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_a_prompt_is_the_same_with_other_hidden_cards(preset: str, num_players: int, style: str, seed: int) -> None:
    rng = random.Random(seed)
    game = random_game(make_spec(preset, num_players), rng)
    for player in range(num_players):
        other = swap_own_cards(game, player, rng)
        if other is None:
            continue
        assert other.hands[player] != game.hands[player]
        assert _prompt(other, player, style) == _prompt(game, player, style)


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_same_swap_does_change_what_the_partner_reads(style: str) -> None:
    reds, yellows = (Card(0, 0), Card(0, 0), Card(0, 1)), (Card(1, 0), Card(1, 0), Card(1, 1))
    game = Game(make_spec("laptop"), (*reds, *yellows, Card(0, 0), Card(1, 0)))
    other = swap_own_cards(game, 0, random.Random(1))
    assert other is not None
    assert _prompt(other, 1, style) != _prompt(game, 1, style)


def _prompt(game: Game, player: int, style: str) -> str:
    return turn_prompt(game.view(player), style=style, legal_moves=True)
