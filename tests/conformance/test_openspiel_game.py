"""Our game beside OpenSpiel's own, moved by the same words and compared after every move.

OpenSpiel is driven here without the package's tables of numbers: moves and cards are matched by the
strings that OpenSpiel prints, and what a player sees is read from `observation_string`.
"""

import re

import pyspiel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_move
from hanabi_grpo.envs.hanabi.rules import (
    COLOR_LETTERS,
    Action,
    Card,
    Game,
    Knowledge,
    PlayerView,
    make_spec,
    shuffled_deck,
)


def _card(text: str) -> Card:
    return Card(COLOR_LETTERS.index(text[0]), int(text[1]) - 1)


def _knowledge(text: str) -> Knowledge:
    """Read e.g. "XX|RY123" or "Y1|Y1": what hints named, then what is possible."""
    hinted, possible = text.split("|")
    colors = []
    ranks = []
    for sign in possible:
        if sign in COLOR_LETTERS:
            colors.append(COLOR_LETTERS.index(sign))
        elif sign.isdigit():
            ranks.append(int(sign) - 1)
    is_color_hinted = hinted[0] != "X"
    is_rank_hinted = hinted[1] != "X"
    return Knowledge(tuple(colors), tuple(ranks), is_color_hinted, is_rank_hinted)


def _action(text: str, player: int, num_players: int) -> Action:
    """Read e.g. "(Play 0)" or "(Reveal player +1 color R)"."""
    match = re.fullmatch(
        r"\((Play|Discard) (\d)\)|\(Reveal player \+(\d) (color|rank) (\w)\)", text
    )
    assert match, text
    verb, slot, offset, kind, value = match.groups()
    if verb:
        return Action(verb.lower(), slot=int(slot))
    target = (player + int(offset)) % num_players
    number = COLOR_LETTERS.index(value) if kind == "color" else int(value) - 1
    return Action(f"hint_{kind}", target=target, value=number)


def _deal(state: pyspiel.State, cards: list[Card]) -> None:
    """Deal the next cards in OpenSpiel's game until a player is to move."""
    while state.is_chance_node():
        text = f"(Deal {cards.pop(0)})"
        outcomes = [number for number, _ in state.chance_outcomes()]
        [number] = [number for number in outcomes if state.action_to_string(number) == text]
        state.apply_action(number)


def _hands(lines: list[str]) -> list[list[list[str]]]:
    """Return per hand and card its text and its knowledge, the observer's own hand first."""
    start = lines.index("Hands:") + 1
    hands: list[list[list[str]]] = [[]]
    for line in lines[start:]:
        if line.startswith("Deck size"):
            break
        if line == "-----":
            hands.append([])
        elif line and line != "Cur player":
            hands[-1].append(line.split(" || "))
    return hands


def _assert_view_matches(view: PlayerView, state: pyspiel.State) -> None:
    lines = state.observation_string(view.player).splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    assert view.lives == int(fields["Life tokens"])
    assert view.hints == int(fields["Info tokens"])
    assert view.deck_size == int(fields["Deck size"])
    stacks = [(COLOR_LETTERS.index(text[0]), int(text[1])) for text in fields["Fireworks"].split()]
    assert list(enumerate(view.fireworks)) == stacks
    assert view.discards == tuple(_card(text) for text in fields["Discards"].split())

    hands = _hands(lines)
    assert len(hands) == view.num_players
    for offset, hand in enumerate(hands):
        seat = (view.player + offset) % view.num_players
        assert view.knowledge[seat] == tuple(_knowledge(known) for _, known in hand)
        if offset:
            assert view.hands[seat] == tuple(_card(card) for card, _ in hand)
        else:
            assert {card for card, _ in hand} <= {"XX"}
            assert view.hands[seat] == ()
            assert view.own_hand == view.knowledge[seat]


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False), careful=st.booleans())
def test_every_position_is_the_one_that_openspiel_shows(
    preset: str, num_players: int, rng, careful: bool
) -> None:
    spec = make_spec(preset, num_players)
    deck = shuffled_deck(spec, "train", rng.randrange(2**32))
    game = Game(spec, deck)
    state = pyspiel.load_game("hanabi", spec.openspiel_parameters).new_initial_state()
    cards = list(deck)
    _deal(state, cards)
    while True:
        for player in range(num_players):
            _assert_view_matches(game.view(player), state)
        assert game.is_over == state.is_terminal()
        assert [game.score] * num_players == state.returns()
        assert game.score_kept == sum(game.view(0).fireworks)
        assert game.score == (0 if game.is_bombed else game.score_kept)
        if game.is_over:
            break
        player = state.current_player()
        assert game.current_player == player
        numbers = {}
        for number in state.legal_actions():
            text = state.action_to_string(number)
            numbers[_action(text, player, num_players)] = number
        assert game.legal_actions() == tuple(numbers)
        assert game.view(player).legal_actions == tuple(numbers)
        for other in range(num_players):
            assert other == player or game.view(other).legal_actions == ()

        action = random_move(game, rng, careful=careful)
        turns_left = game.view(0).turns_left
        returns = state.returns()[0]
        event = game.apply(action)
        state.apply_action(numbers[action])
        # Only here, before the next card is dealt, are these the rewards of the move.
        assert state.rewards()[0] == game.score - returns
        if action.kind == "play":
            assert event.scored == (state.rewards()[0] == 1)
        _deal(state, cards)
        if turns_left is not None:
            assert game.view(0).turns_left == (0 if game.is_over else turns_left - 1)
    view = game.view(0)
    assert game.is_bombed or game.score == spec.max_score or view.turns_left == 0
