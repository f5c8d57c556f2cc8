"""The readable observation and the rules text."""

import random
import string

from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.prompts import system_prompt, turn_prompt
from hanabi_grpo.envs.hanabi.rules import Game, make_spec, parse_action
from hanabi_grpo.envs.hanabi.rules.view import Action, Card

LAPTOP = make_spec("laptop")
R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)
DECK = (R1, Y1, R2, Y1, R1, Y2, R1, Y1)


def full(game: Game, player: int, *, legal_moves: bool = True) -> str:
    return turn_prompt(game.view(player), style="full", legal_moves=legal_moves)


def test_the_opening_message_is_word_for_word_this() -> None:
    assert full(Game(LAPTOP, DECK), 0) == (
        "The game begins.\n"
        "Lives: 1 of 1\n"
        "Hint tokens: 3 of 3\n"
        "Deck: 2 cards\n"
        "Fireworks: red 0, yellow 0\n"
        "Discarded: nothing\n"
        "Hand of player_1:\n"
        "- slot 0: yellow 1 (knows: colour any, rank any)\n"
        "- slot 1: red 1 (knows: colour any, rank any)\n"
        "- slot 2: yellow 2 (knows: colour any, rank any)\n"
        "Your hand, as far as hints have told:\n"
        "- slot 0: colour any, rank any\n"
        "- slot 1: colour any, rank any\n"
        "- slot 2: colour any, rank any\n"
        "Legal moves: Play 0, Play 1, Play 2, Hint player_1 red, Hint player_1 yellow, "
        "Hint player_1 1, Hint player_1 2\n"
        "You are player_0. Your move?"
    )


def test_a_later_message_tells_what_happened_since_and_what_is_known() -> None:
    game = Game(LAPTOP, DECK)
    game.apply(Action("hint_rank", target=1, value=1))
    game.apply(Action("discard", slot=0))
    game.apply(Action("play", slot=0))
    assert full(game, 1, legal_moves=False) == (
        "From your last move on:\n"
        "- You discarded slot 0, yellow 1.\n"
        "- player_0 played slot 0, red 1: it was added to the firework.\n"
        "Lives: 1 of 1\n"
        "Hint tokens: 3 of 3\n"
        "Deck: empty; moves left in the game, all players together: 2\n"
        "Fireworks: red 1, yellow 0\n"
        "Discarded: yellow 1\n"
        "Hand of player_0:\n"
        "- slot 0: yellow 1 (knows: colour any, rank any)\n"
        "- slot 1: red 2 (knows: colour any, rank any)\n"
        "- slot 2: yellow 1 (knows: colour any, rank any)\n"
        "Your hand, as far as hints have told:\n"
        "- slot 0: colour any, rank 1\n"
        "- slot 1: colour any, rank 2 (hinted)\n"
        "- slot 2: colour any, rank any\n"
        "You are player_1. Your move?"
    )


def test_a_hint_is_told_with_the_slots_that_it_touched() -> None:
    game = Game(LAPTOP, DECK)
    game.apply(Action("hint_color", target=1, value=1))
    assert full(game, 1).startswith(
        "So far:\n- player_0 hinted yellow to you, touching slots 0 and 2 of the hand at that time.\nLives"
    )
    game.apply(Action("hint_rank", target=0, value=1))
    assert full(game, 0).startswith(
        "From your last move on:\n"
        "- You hinted yellow to player_1, touching slots 0 and 2 of the hand at that time.\n"
        "- player_1 hinted rank 2 to you, touching slot 2 of the hand at that time.\nLives"
    )


def test_a_misplay_and_a_complete_colour_are_named() -> None:
    game = Game(make_spec("marshal-mini"), DECK)
    game.apply(Action("play", slot=0))
    game.apply(Action("play", slot=2))
    game.apply(Action("play", slot=1))
    text = full(game, 1)
    assert "- You played slot 2, yellow 2: it did not fit and cost a life.\n" in text
    assert "Lives: 2 of 3\n" in text
    assert "Fireworks: red 2 (complete), yellow 0\nDiscarded: yellow 2\n" in text


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32))
def test_every_observation_is_printable_ascii_and_lists_moves_that_parse_back(
    board: tuple[str, int], seed: int
) -> None:
    game = random_game(make_spec(*board), random.Random(seed))
    for player in range(board[1]):
        view = game.view(player)
        text = turn_prompt(view, style="full", legal_moves=True)
        assert set(text) <= set(string.printable)
        listed = [line for line in text.splitlines() if line.startswith("Legal moves: ")]
        texts = listed[0].removeprefix("Legal moves: ").split(", ") if listed else []
        moves = tuple(parse_action(move, num_players=board[1], player=player) for move in texts)
        assert moves == view.legal_actions


def test_the_rules_state_the_numbers_of_this_board() -> None:
    text = system_prompt(make_spec("hle-small"), "full", 1)
    assert "You are player_1 in a game of Hanabi for 2 players, player_0 to player_1" in text
    assert "rank by rank from 1 to 5" in text
    assert "the maximum is 10" in text
    assert "Cards: 20. Colours: red, yellow." in text
    assert "rank 1 x3, rank 2 x2, rank 3 x2, rank 4 x2, rank 5 x1" in text
    assert "Everybody holds 2 cards" in text
    assert "The team starts with 1 life and 3 hint tokens." in text
    assert text.endswith("Play 0\nDiscard 1\nHint player_0 red\nHint player_0 1")


def test_the_rules_say_what_the_last_life_costs() -> None:
    lost, kept = (system_prompt(LAPTOP, "full", 0, bomb_rule=rule) for rule in ("zero", "keep"))
    assert "the game ends at once and every point scored so far is lost: the score is 0." in lost
    assert "the game ends at once and the points scored so far are kept." in kept


def test_the_examples_of_the_rules_are_moves_for_every_seat() -> None:
    for preset, players in ALL_BOARDS:
        for player in range(players):
            examples = system_prompt(make_spec(preset, players), "full", player).splitlines()[-4:]
            assert [parse_action(line, num_players=players, player=player) for line in examples] == [
                Action("play", slot=0),
                Action("discard", slot=make_spec(preset, players).hand_size - 1),
                Action("hint_color", target=(player + 1) % players, value=0),
                Action("hint_rank", target=(player + 1) % players, value=0),
            ]
