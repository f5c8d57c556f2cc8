"""The game itself: one short game written out, errors, and moves as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.envs.hanabi.rules import (
    Action,
    Card,
    Event,
    Game,
    Knowledge,
    format_action,
    make_spec,
    parse_action,
)
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.errors import GameParameterError, IllegalActionError

R1 = Card(0, 0)
R2 = Card(0, 1)
Y1 = Card(1, 0)
Y2 = Card(1, 1)
MINI = make_spec("mini", 2)
DECK = (R1, Y2, Y1, R2, R1, Y1, Y1, R1)
"""Player 0: R1 Y2 Y1, player 1: R2 R1 Y1, then Y1 and R1 are drawn."""


def test_a_game_goes_like_this() -> None:
    game = Game(MINI, DECK)
    assert game.hands == ((R1, Y2, Y1), (R2, R1, Y1))
    assert game.current_player == 0
    assert game.lives == 3
    assert game.hints == 3
    assert game.score == 0

    hint = game.apply(Action("hint_color", target=1, value=0))
    assert hint == Event(0, Action("hint_color", target=1, value=0), touched=(0, 1))
    assert game.view(1).own_hand == (
        Knowledge((0,), (0, 1), True, False),
        Knowledge((0,), (0, 1), True, False),
        Knowledge((1,), (0, 1), False, False),
    )
    assert game.current_player == 1
    assert game.hints == 2

    play = game.apply(Action("play", slot=1))
    assert play == Event(1, Action("play", slot=1), card=R1, scored=True)
    assert game.hands[1] == (R2, Y1, Y1)
    assert game.hand_positions == ((0, 1, 2), (3, 5, 6))
    assert game.view(0).knowledge[1][2] == Knowledge((0, 1), (0, 1), False, False)
    view = game.view(0)
    assert game.score == 1
    assert view.fireworks == (1, 0)
    assert view.turns_left is None
    assert view.deck_size == 1

    discard = game.apply(Action("discard", slot=0))
    assert discard == Event(0, Action("discard", slot=0), card=R1)
    assert game.hints == 3
    assert game.hands[0] == (Y2, Y1, R1)
    assert game.view(0).deck_size == 0
    assert game.view(0).turns_left == 2

    # R2 completes red; hints were full, so none comes back.
    game.apply(Action("play", slot=0))
    assert game.score == 2
    assert game.hints == 3
    assert game.view(1).turns_left == 1
    assert not game.is_over

    misplay = game.apply(Action("play", slot=2))
    assert misplay == Event(0, Action("play", slot=2), card=R1, scored=False)
    assert game.is_over
    assert not game.is_bombed
    assert game.score == 2
    assert game.score_kept == 2
    assert game.lives == 2
    assert game.current_player == -1
    view = game.view(0)
    assert view.turns_left == 0
    assert view.legal_actions == ()
    assert view.discards == (R1, R1)
    assert view.hands == ((), (Y1, Y1))
    assert len(view.own_hand) == 2


@pytest.mark.parametrize(
    "action",
    [
        Action("discard", slot=0),  # all hints are there
        Action("play", slot=3),
        Action("hint_color", target=0, value=0),
        Action("hint_color", target=2, value=0),
        Action("hint_color", target=1, value=4),
        Action("swap", slot=1),
    ],
)
def test_an_illegal_move_lists_the_legal_ones_and_changes_nothing(action: Action) -> None:
    game = Game(MINI, DECK)
    before = game.view(0)
    legal = (
        "Play 0, Play 1, Play 2, Hint player_1 red, Hint player_1 yellow, Hint player_1 1, "
        "Hint player_1 2"
    )
    with pytest.raises(
        IllegalActionError, match=re.escape(f"not legal for player_0 now; choose one of: {legal}.")
    ):
        game.apply(action)
    assert game.view(0) == before
    texts = [format_action(move, style="full", num_players=2) for move in game.legal_actions()]
    assert ", ".join(texts) == legal


def test_no_move_is_possible_after_the_end() -> None:
    game = Game(make_spec("laptop"), DECK)
    game.apply(Action("play", slot=1))
    assert game.legal_actions() == ()
    with pytest.raises(IllegalActionError, match=r"^Play 0: the game is over"):
        game.apply(Action("play", slot=0))


@pytest.mark.parametrize(
    "deck",
    [
        (),
        DECK[:-1],
        (*DECK, R1),
        (*DECK[:-1], R2),
        (*DECK[:-1], Card(2, 0)),
        (Card(0, 2), *DECK[1:6], R1, R1),
    ],
)
def test_a_deck_of_other_cards_is_refused(deck: tuple[Card, ...]) -> None:
    with pytest.raises(GameParameterError, match="a permutation of the 8 cards of the 2x2 board"):
        Game(MINI, deck)


# --- Moves as text and back


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@pytest.mark.parametrize("style", ["full", "compact"])
def test_every_action_of_every_board_is_read_back(
    preset: str, num_players: int, style: str
) -> None:
    spec = make_spec(preset, num_players)
    for player, actions in enumerate(load_rules(spec).actions):
        texts = [format_action(action, style=style, num_players=num_players) for action in actions]
        assert len(set(texts)) == len(actions)
        for action, text in zip(actions, texts, strict=True):
            for spelling in (text, text.upper(), text.lower()):
                assert parse_action(spelling, num_players=num_players, player=player) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("hint player_0 YELLOW", Action("hint_color", target=0, value=1)),
        ("Hint y", Action("hint_color", target=0, value=1)),
        ("Hint green", Action("hint_color", target=0, value=2)),
        ("HINT PLAYER_0 W", Action("hint_color", target=0, value=3)),
        ("Hint 5", Action("hint_rank", target=0, value=4)),
        ("  Play \t 3\n", Action("play", slot=3)),
        # Moves that no position allows are still moves; the game says that they are illegal.
        ("Hint player_1 red", Action("hint_color", target=1, value=0)),
        ("Hint player_4 red", Action("hint_color", target=4, value=0)),
        ("Discard 9", Action("discard", slot=9)),
    ],
)
def test_player_1_of_2_means_this_move(text: str, action: Action) -> None:
    assert parse_action(text, num_players=2, player=1) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Play",
        "Play x",
        "Play 10",
        "Play -1",
        "Play0",
        "Hint",
        "Hint 0",
        "Hint 6",
        "Hint purple",
        "Hint player_5 R",
        "Hint player_1",
        "Hint player_1 red 2",
        "Play 0 1",
        "Play 0\nDiscard 1",
        "Play\n0",
        "I play 0",
        "Play 0.",
        "Play ٣",
        "diſcard 1",
        "\x00",
        "\ud800",
        "Play 0\x00",
    ],
)
def test_these_texts_are_no_move(text: str) -> None:
    assert parse_action(text, num_players=2, player=0) is None


@pytest.mark.parametrize("text", ["Hint R", "Hint 2", "Hint red"])
def test_a_hint_among_three_players_has_to_name_its_player(text: str) -> None:
    assert parse_action(text, num_players=3, player=0) is None


@given(
    text=st.text(st.characters(exclude_categories=()))
    | st.from_regex(r"(?i)(play|discard|hint) \w+ ?\w*")
)
def test_any_string_is_a_move_that_formats_or_none(text: str) -> None:
    action = parse_action(text, num_players=4, player=2)
    if action is not None:
        again = format_action(action, style="full", num_players=4)
        assert parse_action(again, num_players=4, player=2) == action
