"""All scripts that follow rules: legal on every board, blind to hidden cards, with the scores that tables print.

The others are in `test_planners`.
"""

import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game, script, scripted_game, swap_own_cards
from hanabi_grpo.envs.base import Observation, Policy, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS, POLICIES, hint_bot
from hanabi_grpo.envs.hanabi.policies.simple_bot import SimpleBot, SimpleBotSeat
from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, format_action, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck

SCRIPTS = [name for name in POLICIES if name not in PLANNERS]
BOTS = SCRIPTS[3:]
LAPTOP = EnvConfig(preset="laptop", observation="compact")
R1, R2, Y1, Y2 = Card(0, 0), Card(0, 1), Card(1, 0), Card(1, 1)


def answer(policy: Policy, game: Game, number: int = 0) -> str:
    config = EnvConfig(preset=game.spec.preset, players=game.spec.num_players, observation="compact")
    player = game.current_player
    seat = policy.seat(player, task=Setup(HANABI, config).task("test", 3), game=number)
    return seat.act(Observation(HanabiGame(config, game), player))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_no_move_depends_on_the_movers_own_hidden_cards(preset: str, num_players: int, name: str, rng) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    other = None if game.is_over else swap_own_cards(game, game.current_player, rng)
    if other is not None:
        assert answer(script(name), other) == answer(script(name), game)


@pytest.mark.parametrize("name", BOTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_bots_make_only_legal_moves_on_every_board_with_any_partner(preset: str, num_players: int, name: str) -> None:
    config = EnvConfig(preset=preset, players=num_players)
    for seed in range(6):
        scripted_game(config, [name] * num_players, seed=seed)
        strangers = ["random" if seat % 2 == seed % 2 else name for seat in range(num_players)]
        scripted_game(config, strangers, seed=seed)


def test_noise_one_is_random_play() -> None:
    scores = [scripted_game(LAPTOP, [hint_bot(1.0)] * 2, suite="train", seed=seed).score for seed in range(2000)]
    assert abs(fmean(scores) - 0.64) < 0.12


# --- SimpleBot


def deal(first_cards: str, num_players: int) -> Game:
    """Return a game of the board full whose deck begins with these cards; the others follow by colour and rank."""
    spec = make_spec("full", num_players)
    first = [Card("RYGWB".index(text[0]), int(text[1]) - 1) for text in first_cards.split()]
    rest = list(sorted_deck(spec.num_colors, spec.num_ranks))
    for card in first:
        rest.remove(card)
    return Game(spec, [*first, *rest])


def seat_of(preset: str, num_players: int, player: int) -> SimpleBotSeat:
    setup = Setup(HANABI, EnvConfig(preset=preset, players=num_players))
    return SimpleBot().seat(player, task=setup.task("test", 0), game=0)


def simple_move(game: Game) -> Action:
    seat = seat_of(game.spec.preset, game.spec.num_players, game.current_player)
    return seat.move(game.view(game.current_player))


HAND = "R2 Y3 G3 W3 B2  "
"""Of seat 0: nothing in it fits."""


@pytest.mark.parametrize(
    ("deck", "num_players", "moves"),
    [
        # Of equal hints the colour is given, and the card is played.
        ("R1 Y2 Y3 Y4 W2", 2, "Hint player_1 red, Play 0"),
        # A hint that touches a card that does not fit is not given.
        ("Y2 R1 R3 Y4 W2", 2, "Hint player_1 1, Play 1"),
        # The hint that tells of most cards is given, and a later player wins only with more.
        ("R1 Y2 Y3 Y4 W2  W3 G1 B1 G4 B4", 3, "Hint player_2 1"),
        ("R1 Y2 Y3 Y4 W2  W3 G1 B3 G4 B4", 3, "Hint player_1 red"),
        # Without a hint to give it discards, and with all tokens it stalls, which means nothing.
        ("R2 Y2 G2 W2 B3", 2, "Hint player_1 2, Discard 0"),
        # A rank hint of card 0 with all tokens is taken for a stall even where it is meant;
        ("R1 R3 Y2 Y3 Y4", 2, "Hint player_1 1, Discard 0"),
        # but only the player who follows the receiver can stall.
        ("R1 R3 Y2 Y3 Y4  R4 Y4 G4 W4 B4", 3, "Hint player_1 1, Play 0"),
        # A play takes back the marks of cards that may be the same.
        ("R3 R1 Y1 Y4 W2  G4", 2, "Hint player_1 1, Play 1, Hint player_1 1, Play 1"),
    ],
)
def test_simple_bot_means_play_this_by_its_hints(deck: str, num_players: int, moves: str) -> None:
    game = deal(HAND + deck, num_players)
    made = [game.apply(simple_move(game)).action for _ in moves.split(", ")]
    assert ", ".join(format_action(move, style="full", num_players=num_players) for move in made) == moves


@pytest.mark.parametrize("num_players", [2, 5])
def test_a_simple_bot_that_was_there_all_along_knows_no_more_than_one_that_reads_the_record(num_players: int) -> None:
    spec = make_spec("full", num_players)
    rng = random.Random(7)
    for seed in range(10):
        game = Game(spec, shuffled_deck(spec, "test", seed))
        seats = [seat_of("full", num_players, player) for player in range(num_players)]
        while not game.is_over:
            player = game.current_player
            move = seats[player].move(game.view(player))
            assert move == simple_move(game)
            game.apply(move if rng.random() < 0.8 else rng.choice(game.legal_actions()))
