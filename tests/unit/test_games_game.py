"""The game itself: one short game written out, errors, copies."""

import random
import re

import pytest

from boards import ALL_BOARDS, random_game, random_move
from hanabi_grpo.envs.hanabi.rules import Action, Card, Event, Game, Knowledge, format_action, make_spec
from hanabi_grpo.errors import GameParameterError, IllegalActionError

R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)
MINI = make_spec("mini", 2)
DECK = (R1, Y2, Y1, R2, R1, Y1, Y1, R1)
"""Player 0: R1 Y2 Y1, player 1: R2 R1 Y1, then Y1 and R1 are drawn."""


def _play(game: Game, *moves: Action) -> Game:
    for move in moves:
        game.apply(move)
    return game


def test_a_game_goes_like_this() -> None:
    game = Game(MINI, DECK)
    assert game.hands == ((R1, Y2, Y1), (R2, R1, Y1))
    assert (game.current_player, game.lives, game.hints, game.score) == (0, 3, 3, 0)

    hint = game.apply(Action("hint_color", target=1, value=0))
    assert hint == Event(0, Action("hint_color", target=1, value=0), touched=(0, 1))
    assert game.view(1).own_hand == (
        Knowledge((0,), (0, 1), True, False),
        Knowledge((0,), (0, 1), True, False),
        Knowledge((1,), (0, 1), False, False),
    )
    assert (game.current_player, game.hints) == (1, 2)

    play = game.apply(Action("play", slot=1))
    assert play == Event(1, Action("play", slot=1), card=R1, scored=True)
    assert game.hands[1] == (R2, Y1, Y1)
    assert game.hand_positions == ((0, 1, 2), (3, 5, 6))
    assert game.view(0).knowledge[1][2] == Knowledge((0, 1), (0, 1), False, False)
    assert (game.score, game.view(0).fireworks, game.view(0).turns_left, game.view(0).deck_size) == (1, (1, 0), None, 1)

    discard = game.apply(Action("discard", slot=0))
    assert discard == Event(0, Action("discard", slot=0), card=R1)
    assert (game.hints, game.hands[0], game.view(0).deck_size, game.view(0).turns_left) == (3, (Y2, Y1, R1), 0, 2)

    game.apply(Action("play", slot=0))  # R2 completes red; hints were full, so none comes back
    assert (game.score, game.hints, game.view(1).turns_left, game.is_over) == (2, 3, 1, False)

    misplay = game.apply(Action("play", slot=2))
    assert misplay == Event(0, Action("play", slot=2), card=R1, scored=False)
    assert game.is_over
    assert not game.is_bombed
    assert (game.score, game.score_kept, game.lives, game.current_player) == (2, 2, 2, -1)
    view = game.view(0)
    assert (view.turns_left, view.legal_actions, view.discards) == (0, (), (R1, R1))
    assert view.hands == ((), (Y1, Y1))
    assert len(view.own_hand) == 2


def test_a_bomb_scores_nothing_and_keeps_its_points_apart() -> None:
    game = Game(make_spec("laptop"), DECK)
    game.apply(Action("play", slot=0))
    assert (game.score, game.score_kept) == (1, 1)
    game.apply(Action("play", slot=1))
    assert (game.is_over, game.is_bombed, game.score, game.score_kept) == (True, True, 0, 1)


def test_a_finished_colour_pays_a_hint_back() -> None:
    hint = Action("hint_rank", target=1, value=0)
    game = _play(Game(MINI, DECK), hint, Action("play", slot=1))
    assert game.hints == 2
    game = _play(game, hint, Action("play", slot=0))
    assert (game.hints, game.view(0).fireworks) == (2, (2, 0))


def test_each_player_has_one_more_turn_after_the_last_draw() -> None:
    hint_1, hint_0 = Action("hint_rank", target=1, value=0), Action("hint_rank", target=0, value=0)
    game = _play(Game(MINI, DECK), hint_1, Action("discard", slot=0), hint_1, Action("discard", slot=0))
    assert game.view(0).turns_left == game.view(1).turns_left == 2
    assert _play(game, hint_1).view(0).turns_left == 1
    assert _play(game, hint_0).view(0).turns_left == 0
    assert game.is_over


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
    legal = "Play 0, Play 1, Play 2, Hint player_1 red, Hint player_1 yellow, Hint player_1 1, Hint player_1 2"
    with pytest.raises(IllegalActionError, match=re.escape(f"not legal for player_0 now; choose one of: {legal}.")):
        game.apply(action)
    assert game.view(0) == before
    assert ", ".join(format_action(a, style="full", num_players=2) for a in game.legal_actions()) == legal


def test_no_move_is_possible_after_the_end() -> None:
    game = _play(Game(make_spec("laptop"), DECK), Action("play", slot=1))
    assert game.legal_actions() == ()
    with pytest.raises(IllegalActionError, match=r"^Play 0: the game is over"):
        game.apply(Action("play", slot=0))


@pytest.mark.parametrize(
    "deck",
    [(), DECK[:-1], (*DECK, R1), (*DECK[:-1], R2), (*DECK[:-1], Card(2, 0)), (Card(0, 2), *DECK[1:6], R1, R1)],
)
def test_a_deck_of_other_cards_is_refused(deck: tuple[Card, ...]) -> None:
    with pytest.raises(GameParameterError, match="some order of the 8 cards of the 2x2 board"):
        Game(MINI, deck)


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_a_copy_goes_its_own_way(preset: str, num_players: int) -> None:
    rng = random.Random(3)
    num_forks = 0
    while num_forks < 10:
        game = random_game(make_spec(preset, num_players), rng)
        if game.is_over:
            continue
        num_forks += 1
        before = [game.view(player) for player in range(num_players)]
        copy = game.copy()
        moves = []
        while not copy.is_over:
            moves.append(random_move(copy, rng, careful=True))
            copy.apply(moves[-1])
        assert [game.view(player) for player in range(num_players)] == before
        _play(game, *moves)
        assert [game.view(p) for p in range(num_players)] == [copy.view(p) for p in range(num_players)]
        assert (game.score, game.score_kept, game.hands) == (copy.score, copy.score_kept, copy.hands)


def test_the_view_is_the_same_whether_or_not_one_looked_before() -> None:
    rng = random.Random(9)
    for _ in range(50):
        game = random_game(make_spec("small", 3), rng)
        watched = Game(game.spec, game.deck)
        for event in game.events:
            watched.view(rng.randrange(3))
            watched.apply(event.action)
        unwatched = _play(Game(game.spec, game.deck), *(event.action for event in game.events))
        assert watched.view(1) == unwatched.view(1)
