"""No prompt depends on the cards that its player cannot see."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rules import Card, Game, make_spec, shuffled_deck
from hanabi_grpo.errors import IllegalActionError
from hidden_cards import swap_own_cards


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), num_moves=st.integers(0, 5))
def test_a_prompt_is_the_same_for_any_cards_that_leave_the_public_events_as_they_were(
    preset: str, num_players: int, style: str, seed: int, num_moves: int
) -> None:
    rng = random.Random(seed)
    spec = make_spec(preset, num_players)
    game = Game(spec, shuffled_deck(spec, "train", seed))
    while game.num_turns < num_moves and not game.is_over:
        game.apply(rng.choice(game.legal_actions()))
    for player in range(num_players):
        others = [_reshuffled(game, player, rng) for _ in range(10)]
        for other in others:
            if other is not None:
                assert _prompt(other, player, style) == _prompt(game, player, style)
        assert num_moves or None not in others


@pytest.mark.parametrize("style", ["full", "compact"])
def test_the_same_swap_does_change_what_the_partner_reads(style: str) -> None:
    reds, yellows = (Card(0, 0), Card(0, 0), Card(0, 1)), (Card(1, 0), Card(1, 0), Card(1, 1))
    game = Game(make_spec("laptop"), (*reds, *yellows, Card(0, 0), Card(1, 0)))
    other = swap_own_cards(game, 0, random.Random(1))
    assert other is not None
    assert _prompt(other, 1, style) != _prompt(game, 1, style)


def _reshuffled(game: Game, player: int, rng: random.Random) -> Game | None:
    """Mix the player's hand with the undealt cards and replay; None if anybody would have seen other events.

    Unlike `swap_own_cards` this never asks the view what fits, so that a view that leaks cannot hide it.
    """
    held = game.hand_positions[player]
    num_drawn = len(game.deck) - game.view(player).deck_size
    places = [*held, *range(num_drawn, len(game.deck))]
    cards = [game.deck[place] for place in places]
    rng.shuffle(cards)
    deck = list(game.deck)
    for place, card in zip(places, cards, strict=True):
        deck[place] = card
    other = Game(game.spec, deck)
    try:
        for event in game.events:
            other.apply(event.action)
    except IllegalActionError:
        return None
    return other if other.events == game.events else None


def _prompt(game: Game, player: int, style: str) -> str:
    return turn_prompt(game.view(player), style=style, legal_moves=True)
