from pathlib import Path

import pytest

from hanabi_grpo.envs.hanabi.policies import SCRIPTED
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.lineups import adapter_word, checkpoint_word, parse_line_up, short_name


def test_one_word_fills_every_seat_and_is_never_rotated() -> None:
    line_up = parse_line_up("served", 3)
    assert line_up.words == ("served",) * 3
    assert line_up.orders() == [("served",) * 3]


def test_a_list_is_rotated_through_its_different_seat_orders() -> None:
    assert parse_line_up("iggi, served", 2).orders() == [("iggi", "served"), ("served", "iggi")]
    assert len(parse_line_up("iggi,iggi,served", 3).orders()) == 3
    assert len(parse_line_up("iggi,served,iggi,served", 4).orders()) == 2
    assert parse_line_up("iggi,served", 2).orders(rotate=False) == [("iggi", "served")]


@pytest.mark.parametrize("name", SCRIPTED)
def test_scripts_alone_need_no_server(name: str) -> None:
    assert not parse_line_up(f"{name},random", 2).needs_server
    assert parse_line_up(f"{name},base", 2).needs_server


@pytest.mark.parametrize("text", ["served", "base", "player_1", "player_1@latest", "player_4@60", "shared@0"])
def test_words_of_a_server_are_read(text: str) -> None:
    assert parse_line_up(text, 2).needs_server


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("player_0", ("player_0", None)),
        ("player_0@latest", ("player_0", None)),
        ("shared@12", ("shared", 12)),
        ("player_5", None),
        ("player_0@", None),
        ("player_0@-1", None),
        ("player_0@٣", None),
    ],
)
def test_adapters_of_the_server(word: str, found: tuple[str, int | None] | None) -> None:
    assert adapter_word(word) == found


def test_a_folder_is_a_checkpoint_with_or_without_an_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "a:run" / "checkpoint-50"
    folder.mkdir(parents=True)
    assert checkpoint_word(str(folder)) == (folder, None)
    assert checkpoint_word(f"{folder}:player_1") == (folder, "player_1")
    assert short_name(f"{folder}:player_1") == "a:run/checkpoint-50:player_1"
    assert short_name("iggi") == "iggi"
    assert parse_line_up(f"{folder},iggi", 2).needs_server


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("igi", "Did you mean 'iggi'"),
        ("iggi,iggi,iggi", "3 words for 2 players"),
        ("", "'' is unknown"),
        ("iggi,", "'' is unknown"),
        ("human,iggi", "hanabi-grpo play"),
        ("outputs/no-such-run", "no such folder"),
        ("player_9", "'player_9' is unknown"),
    ],
)
def test_other_words_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_line_up(text, 2)


def test_people_sit_only_where_they_can_be_asked() -> None:
    assert not parse_line_up("human,iggi", 2, human=True).needs_server
