"""Moves as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.envs.hanabi.rules import Action, format_action, make_spec, parse_action
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.errors import IllegalActionError, SettingsError

RED_TO_1 = Action("hint_color", target=1, value=0)
THREE_TO_2 = Action("hint_rank", target=2, value=2)


@pytest.mark.parametrize(
    ("action", "style", "num_players", "text"),
    [
        (Action("play", slot=0), "full", 2, "Play 0"),
        (Action("discard", slot=4), "compact", 5, "Discard 4"),
        (RED_TO_1, "full", 2, "Hint player_1 red"),
        (RED_TO_1, "compact", 2, "Hint R"),
        (RED_TO_1, "compact", 3, "Hint player_1 R"),
        (THREE_TO_2, "full", 3, "Hint player_2 3"),
        (THREE_TO_2, "compact", 3, "Hint player_2 3"),
        (Action("hint_rank", target=1, value=1), "compact", 2, "Hint 2"),
        (Action("hint_color", target=0, value=4), "full", 4, "Hint player_0 blue"),
    ],
)
def test_an_action_has_this_text(action: Action, style: str, num_players: int, text: str) -> None:
    assert format_action(action, style=style, num_players=num_players) == text


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@pytest.mark.parametrize("style", ["full", "compact"])
def test_every_action_of_every_board_is_read_back(preset: str, num_players: int, style: str) -> None:
    spec = make_spec(preset, num_players)
    for player, actions in enumerate(load_rules(spec).actions):
        texts = [format_action(action, style=style, num_players=num_players) for action in actions]
        assert len(set(texts)) == len(actions)
        for shown in (texts, map(str.upper, texts), map(str.lower, texts)):
            assert tuple(parse_action(text, num_players=num_players, player=player) for text in shown) == actions


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
    ["", " ", "Play", "Play x", "Play 10", "Play -1", "Play0", "Hint", "Hint 0", "Hint 6", "Hint purple",
     "Hint player_5 R", "Hint player_1", "Hint player_1 red 2", "Play 0 1", "Play 0\nDiscard 1", "Play\n0", "I play 0",
     "Play 0.", "Play ٣", "diſcard 1", "\x00", "\ud800", "Play 0\x00"],
)  # fmt: skip
def test_these_texts_are_no_move(text: str) -> None:
    assert parse_action(text, num_players=2, player=0) is None


def test_a_hint_without_a_target_is_no_move_with_three_players() -> None:
    assert {parse_action(text, num_players=3, player=0) for text in ("Hint R", "Hint 2", "Hint red")} == {None}


@given(text=st.text(st.characters(exclude_categories=())) | st.from_regex(r"(?i)(play|discard|hint) \w+ ?\w*"))
def test_any_string_is_a_move_that_formats_or_none(text: str) -> None:
    action = parse_action(text, num_players=4, player=2)
    if action is not None:
        again = format_action(action, style="full", num_players=4)
        assert parse_action(again, num_players=4, player=2) == action


def test_an_unknown_style_or_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"style='fancy': an action's text is one of full, compact\."):
        format_action(RED_TO_1, style="fancy", num_players=2)
    with pytest.raises(IllegalActionError, match="kinds are play, discard"):
        format_action(Action("swap", slot=1), style="full", num_players=2)
    with pytest.raises(IllegalActionError, match="values 0 to 4"):
        format_action(Action("hint_color", target=1, value=5), style="full", num_players=2)
