"""What prompts say, word for word, and how moves are read out of whatever a model writes."""

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.endings import outcome
from hanabi_grpo.envs.hanabi.prompts import (
    compact_vocabulary,
    parse_reply,
    system_prompt,
    turn_prompt,
)
from hanabi_grpo.envs.hanabi.rules import Game, format_action, make_spec, parse_action
from hanabi_grpo.envs.hanabi.rules.view import Action, Card
from hanabi_grpo.envs.referee import play_scripts

LAPTOP = make_spec("laptop")
R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)
DECK = (R1, Y1, R2, Y1, R1, Y2, R1, Y1)
PLAY_0 = Action("play", slot=0)


def full(game: Game, player: int, *, legal_moves: bool = True) -> str:
    return turn_prompt(game.view(player), style="full", legal_moves=legal_moves)


def compact(game: Game, player: int, *, legal_moves: bool = False) -> str:
    return turn_prompt(game.view(player), style="compact", legal_moves=legal_moves)


def read(text: str) -> Action | None:
    return parse_reply(text, num_players=2, player=0)


def later_game() -> Game:
    """Return a game after a hint, a discard and a play; the deck is empty."""
    game = Game(LAPTOP, DECK)
    for action in (
        Action("hint_rank", target=1, value=1),
        Action("discard", slot=0),
        Action("play", slot=0),
    ):
        game.apply(action)
    return game


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


def test_the_rules_state_the_numbers_of_this_board_and_what_the_last_life_costs() -> None:
    text = system_prompt(make_spec("hle-small"), "full", 1)
    assert "You are player_1 in a game of Hanabi for 2 players, player_0 to player_1" in text
    assert "rank by rank from 1 to 5" in text
    assert "the maximum is 10" in text
    assert "Cards: 20. Colours: red, yellow." in text
    assert "rank 1 x3, rank 2 x2, rank 3 x2, rank 4 x2, rank 5 x1" in text
    assert "Everybody holds 2 cards" in text
    assert "The team starts with 1 life and 3 hint tokens." in text
    assert text.endswith("Play 0\nDiscard 1\nHint player_0 red\nHint player_0 1")
    assert "the game ends at once and every point scored so far is lost: the score is 0." in text
    kept = system_prompt(LAPTOP, "full", 0, bomb_rule="keep")
    assert "the game ends at once and the points scored so far are kept." in kept
    assert system_prompt(LAPTOP, "compact", 0) == ""


@pytest.mark.parametrize(
    ("bomb_rule", "rule", "news"),
    [
        (
            "zero",
            "When no lives are left, the game ends and every point is lost.",
            "The last life is lost. On this board, that costs every point scored so far.",
        ),
        (
            "keep",
            "When no lives are left, the game ends and the score is 0, but the team keeps the "
            "reward for its points.",
            "The last life is lost. The team keeps the reward for its points, but the score is 0.",
        ),
    ],
)
def test_a_person_is_told_of_a_bomb_what_the_score_at_the_end_says(
    bomb_rule: str, rule: str, news: str
) -> None:
    setup = registry.setup("hanabi", {"preset": "laptop", "bomb_rule": bomb_rule})
    assert rule in setup.environment.person_message(setup.config, 0)
    script = setup.environment.policies["random"]()
    task = setup.task("eval", 3)
    episode = play_scripts(task, {0: script, 1: script})
    assert (episode.result["bombed"], episode.result["score_kept"]) == (1, 1)
    game = setup.environment.reset(setup.config, split="eval", seed=3)
    for turn in episode.turns:
        game.step({turn.player: turn.action})
    assert game.scene(0).news[-1] == news
    assert outcome(setup.spec, episode, 0) == "Your team scored 0 of 4."


def test_the_compact_lines_of_a_laptop_game_are_word_for_word_these() -> None:
    assert compact(Game(LAPTOP, DECK), 0, legal_moves=True) == (
        "life1 info3 deck2 nextR1 nextY1 me slot0 cRY r12 slot1 cRY r12 slot2 cRY r12 "
        "mate Y1 cRY r12 R1 cRY r12 Y2 cRY r12 disc "
        "moves Play 0 Play 1 Play 2 Hint R Hint Y Hint 1 Hint 2"
    )
    assert compact(later_game(), 1) == (
        "life1 info3 deck0 left2 nextR2 nextY1 me slot0 cRY r1 slot1 cRY r2 slot2 cRY r12 "
        "mate Y1 cRY r12 R2 cRY r12 Y1 cRY r12 disc Y1"
    )


def test_the_laptop_vocabulary_is_exactly_this() -> None:
    assert " ".join(compact_vocabulary(LAPTOP)) == (
        "life0 life1 info0 info1 info2 info3 deck0 deck1 deck2 left0 left1 left2 "
        "nextR1 nextR2 nextR3 nextY1 nextY2 nextY3 me disc moves slot0 slot1 slot2 "
        "mate R1 R2 Y1 Y2 cR cY cRY r1 r2 r12 Play Discard Hint 0 1 2 R Y"
    )


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32))
def test_a_compact_position_and_its_moves_have_only_words_of_the_vocabulary(
    board: tuple[str, int], seed: int
) -> None:
    preset, num_players = board
    game = random_game(make_spec(preset, num_players), random.Random(seed))
    vocabulary = compact_vocabulary(game.spec)
    assert len(set(vocabulary)) == len(vocabulary)
    for player in range(num_players):
        view = game.view(player)
        words = turn_prompt(view, style="compact", legal_moves=True).split(" ")
        for action in view.legal_actions:
            words += format_action(action, style="compact", num_players=num_players).split(" ")
        assert set(words) <= set(vocabulary)


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32))
def test_a_full_position_is_printable_and_its_listed_moves_parse_back(
    board: tuple[str, int], seed: int
) -> None:
    preset, num_players = board
    game = random_game(make_spec(preset, num_players), random.Random(seed))
    for player in range(num_players):
        view = game.view(player)
        text = turn_prompt(view, style="full", legal_moves=True)
        assert set(text) <= set(string.printable)
        moves = [
            parse_action(move, num_players=num_players, player=player)
            for move in listed_moves(text)
        ]
        assert tuple(moves) == view.legal_actions


def listed_moves(prompt: str) -> list[str]:
    """Return the moves that a full prompt lists; empty where it lists none."""
    for line in prompt.splitlines():
        if line.startswith("Legal moves: "):
            return line.removeprefix("Legal moves: ").split(", ")
    return []


PLAY_0_REPLIES = (
    "Play 0",
    "play 0",
    "  Play 0  \n\n",
    "**Play 0**",
    "`Play 0`",
    '"Play 0."',
    "> Play 0",
    "- Play 0",
    "### Play 0",
    "Action: Play 0",
    "**Action:** Play 0",
    "**My final move is:** `Play 0`!",
    "```\nPlay 0\n```",
    "Discard 1\nPlay 0",
    "I know that slot 0 is red 1.\nPlay 0",
    "Play 0\nThat is my move because it fits.",
    "<think>Discard 1</think>Play 0",
    "<think>\nDiscard 1\n</think>\n\nPlay 0",
    "Discard 1</think>Play 0",
    "<THINK>Discard 1</THINK>\nPlay 0",
    "<think>a</think>Discard 1\n<think>b</think>Play 0",
    "Play 0\n<think>Discard 1</think>",
)


@pytest.mark.parametrize("reply", PLAY_0_REPLIES)
def test_this_reply_plays_slot_0(reply: str) -> None:
    assert read(reply) == PLAY_0


REPLIES_WITHOUT_A_MOVE = (
    "",
    "\n\n",
    "Play",
    "Play zero",
    "I would Play 0",
    "Never do this: Play 0",
    "Play 0 or Discard 1",
    "<think>Play 0",
    "Play 0\n<think>But wait",
    "<think>Play 0</think>",
    "<think>a</think>Play 0<think>",
    "Play 0<think>a</think>b</think>c",
    "Play \u0660",
    "Hint R Y",
)


@pytest.mark.parametrize("reply", REPLIES_WITHOUT_A_MOVE)
def test_this_reply_holds_no_move(reply: str) -> None:
    assert read(reply) is None


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "\n", "*", "Action:", "Play ", " ", "(", "\ud800", "Play 0\r"]
)
def test_a_reply_of_two_million_characters_is_read(piece: str) -> None:
    reply = piece * (2_000_000 // len(piece)) + "\nPlay 0"
    # Thinking that never ends hides the move.
    expected = None if piece == "<think>" else PLAY_0
    assert read(reply) == expected
