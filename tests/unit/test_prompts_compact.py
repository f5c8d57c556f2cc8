"""The word-level observation and its vocabulary."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle, compact_vocabulary, system_prompt, turn_prompt
from hanabi_grpo.envs.hanabi.rules import Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.view import Action, Card

LAPTOP = make_spec("laptop")
R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)
DECK = (R1, Y1, R2, Y1, R1, Y2, R1, Y1)


def compact(game: Game, player: int, *, legal_moves: bool = False) -> str:
    return turn_prompt(game.view(player), style="compact", legal_moves=legal_moves)


def test_the_first_line_of_a_laptop_game_is_word_for_word_this() -> None:
    assert compact(Game(LAPTOP, DECK), 0) == (
        "life1 info3 deck2 nextR1 nextY1 me slot0 cRY r12 slot1 cRY r12 slot2 cRY r12 "
        "mate Y1 cRY r12 R1 cRY r12 Y2 cRY r12 disc"
    )


def test_hints_plays_discards_and_the_empty_deck_show_in_the_line() -> None:
    game = Game(LAPTOP, DECK)
    game.apply(Action("hint_rank", target=1, value=1))
    game.apply(Action("discard", slot=0))
    game.apply(Action("play", slot=0))
    assert compact(game, 1) == (
        "life1 info3 deck0 left2 nextR2 nextY1 me slot0 cRY r1 slot1 cRY r2 slot2 cRY r12 "
        "mate Y1 cRY r12 R2 cRY r12 Y1 cRY r12 disc Y1"
    )


def test_a_finished_colour_names_one_more_than_the_last_rank() -> None:
    game = Game(LAPTOP, DECK)
    for action in (Action("play", slot=0), Action("hint_rank", target=0, value=0), Action("play", slot=1)):
        game.apply(action)
    assert "nextR3 nextY1" in compact(game, 1)


def test_legal_moves_are_listed_when_asked_for_and_only_to_the_player_in_turn() -> None:
    game = Game(LAPTOP, DECK)
    assert compact(game, 0, legal_moves=True).endswith(" disc moves Play 0 Play 1 Play 2 Hint R Hint Y Hint 1 Hint 2")
    assert compact(game, 1, legal_moves=True).endswith(" disc")


def test_with_three_players_the_line_names_seats_because_hints_do() -> None:
    spec = make_spec("full", 3)
    game = Game(spec, shuffled_deck(spec, "test", 1))
    words = compact(game, 1).split()
    assert words[words.index("me") + 1] == "player_1"
    assert words[words.index("mate1") + 1] == "player_2"
    assert words[words.index("mate2") + 1] == "player_0"


def test_the_laptop_vocabulary_is_exactly_this() -> None:
    assert " ".join(compact_vocabulary(LAPTOP)) == (
        "life0 life1 info0 info1 info2 info3 deck0 deck1 deck2 left0 left1 left2 "
        "nextR1 nextR2 nextR3 nextY1 nextY2 nextY3 me disc moves slot0 slot1 slot2 mate R1 R2 Y1 Y2 "
        "cR cY cRY r1 r2 r12 Play Discard Hint 0 1 2 R Y"
    )


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32))
def test_every_word_of_every_position_and_reply_is_in_the_vocabulary(board: tuple[str, int], seed: int) -> None:
    game = random_game(make_spec(*board), random.Random(seed))
    vocabulary = compact_vocabulary(game.spec)
    assert len(set(vocabulary)) == len(vocabulary)
    for player in range(board[1]):
        view = game.view(player)
        line = turn_prompt(view, style=ObservationStyle.COMPACT, legal_moves=True)
        replies = [format_action(action, style="compact", num_players=board[1]) for action in view.legal_actions]
        assert set(line.split(" ")) | {word for reply in replies for word in reply.split(" ")} <= set(vocabulary)


def test_the_compact_style_has_no_system_prompt() -> None:
    assert system_prompt(LAPTOP, "compact", 0) == ""
