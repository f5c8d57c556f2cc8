"""Reading moves out of whatever a model writes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.prompts import parse_reply
from hanabi_grpo.envs.hanabi.rules import format_action, make_spec
from hanabi_grpo.envs.hanabi.rules.view import Action

PLAY_0 = Action("play", slot=0)
DISCARD_1 = Action("discard", slot=1)
HINT_RED = Action("hint_color", target=1, value=0)


def read(text: str) -> Action | None:
    return parse_reply(text, num_players=2, player=0)


def test_these_replies_all_play_slot_0() -> None:
    for text in (
        *("Play 0", "play 0", "  Play 0  \n\n", "**Play 0**", "`Play 0`", '"Play 0."', "> Play 0", "- Play 0"),
        *("### Play 0", "Action: Play 0", "**Action:** Play 0", "**My final move is:** `Play 0`!", "```\nPlay 0\n```"),
        *("Discard 1\nPlay 0", "I know that slot 0 is red 1.\nPlay 0", "Play 0\nThat is my move because it fits."),
        *("<think>Discard 1</think>Play 0", "<think>\nDiscard 1\n</think>\n\nPlay 0", "Discard 1</think>Play 0"),
        *("<THINK>Discard 1</THINK>\nPlay 0", "<think>a</think>Discard 1\n<think>b</think>Play 0"),
        "Play 0\n<think>Discard 1</think>",
    ):
        assert read(text) == PLAY_0, text


def test_these_replies_hold_no_move() -> None:
    for text in (
        *("", "\n\n", "Play", "Play zero", "I would Play 0", "Never do this: Play 0", "Play 0 or Discard 1"),
        *("<think>Play 0", "Play 0\n<think>But wait", "<think>Play 0</think>", "<think>a</think>Play 0<think>"),
        *("Play 0<think>a</think>b</think>c", "Play \u0660", "Hint R Y"),
    ):
        assert read(text) is None, text


def test_a_hint_may_leave_out_its_target_only_with_two_players() -> None:
    assert read("Hint R") == HINT_RED
    assert read("Hint player_1 red") == HINT_RED
    assert parse_reply("Hint R", num_players=3, player=0) is None
    assert parse_reply("Hint player_1 red", num_players=3, player=0) == HINT_RED


def test_the_last_move_counts_even_after_an_unreadable_line() -> None:
    assert read("Play 0\nDiscard 1\nthe end") == DISCARD_1


@settings(deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=())),
    num_players=st.integers(2, 5),
    player=st.integers(0, 4),
)
def test_any_text_gives_a_move_or_none(text: str, num_players: int, player: int) -> None:
    assert isinstance(parse_reply(text, num_players=num_players, player=player % num_players), Action | None)


@settings(deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "Play 0", "\n", "Action:", "*", "\x00", "\ud800", "Hint ", "R", ":"])
    )
)
def test_any_mix_of_tags_labels_and_moves_gives_a_move_or_none(parts: list[str]) -> None:
    assert isinstance(read("".join(parts)), Action | None)


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "\n", "*", "Action:", "Play ", " ", "(", "\ud800", "Play 0\r"]
)
def test_a_reply_of_two_million_characters_is_read(piece: str) -> None:
    assert read(piece * (2_000_000 // len(piece)) + "\nPlay 0") == (None if piece == "<think>" else PLAY_0)


@settings(deadline=None)
@given(
    board=st.sampled_from(ALL_BOARDS),
    seed=st.integers(0, 2**32),
    style=st.sampled_from(["full", "compact"]),
    wrapping=st.sampled_from(["{}", "**{}**", "<think>Play 0\n</think>{}", "Well.\nMy move: {}.", "`{}`\nDone."]),
)
def test_every_legal_move_is_read_back_from_its_decorated_text(
    board: tuple[str, int], seed: int, style: str, wrapping: str
) -> None:
    game = random_game(make_spec(*board), random.Random(seed))
    for action in game.legal_actions():
        text = wrapping.format(format_action(action, style=style, num_players=board[1]))
        assert parse_reply(text, num_players=board[1], player=game.current_player) == action
