"""SimpleBot: what its hints mean, move by move."""

import random

import pytest

from boards import ALL_BOARDS, scripted_game
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies.simple_bot import SimpleBot, SimpleBotSeat
from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck

BOT = SimpleBot()


def deal(first_cards: str, preset: str = "full", num_players: int = 2) -> Game:
    """Return a game whose deck begins with these cards; the others follow by colour and rank."""
    spec = make_spec(preset, num_players)
    first = [Card("RYGWB".index(text[0]), int(text[1]) - 1) for text in first_cards.split()]
    rest = list(sorted_deck(spec.num_colors, spec.num_ranks))
    for card in first:
        rest.remove(card)
    return Game(spec, [*first, *rest])


def answer(game: Game) -> Action:
    player = game.current_player
    return seat_of(game.spec.preset, game.spec.num_players, player).move(game.view(player))


def seat_of(preset: str, num_players: int, player: int) -> SimpleBotSeat:
    setup = Setup(HANABI, EnvConfig(preset=preset, players=num_players))
    return BOT.seat(player, task=setup.task("test", 0), game=0)


def play(game: Game, num_moves: int) -> list[Action]:
    return [game.apply(answer(game)).action for _ in range(num_moves)]


def color_hint(target: int, color: int) -> Action:
    return Action("hint_color", target=target, value=color)


def rank_hint(target: int, rank: int) -> Action:
    return Action("hint_rank", target=target, value=rank)


PLAY_0, DISCARD_0 = Action("play", slot=0), Action("discard", slot=0)


def test_of_equal_hints_the_colour_is_given_and_the_card_is_played() -> None:
    game = deal("R2 Y3 G3 W3 B2  R1 Y2 Y3 Y4 W2")
    assert play(game, 2) == [color_hint(1, 0), PLAY_0]


def test_a_hint_that_touches_a_card_that_does_not_fit_is_not_given() -> None:
    game = deal("R2 Y3 G3 W3 B2  Y2 R1 R3 Y4 W2")
    assert play(game, 2) == [rank_hint(1, 0), Action("play", slot=1)]


def test_the_hint_that_tells_of_most_cards_is_given_and_a_later_player_wins_only_with_more() -> None:
    game = deal("R2 Y3 G3 W3 B2  R1 Y2 Y3 Y4 W2  W3 G1 B1 G4 B4", num_players=3)
    assert play(game, 1) == [rank_hint(2, 0)]
    game = deal("R2 Y3 G3 W3 B2  R1 Y2 Y3 Y4 W2  W3 G1 B3 G4 B4", num_players=3)
    assert play(game, 1) == [color_hint(1, 0)]


def test_without_a_hint_to_give_it_discards_and_with_all_tokens_it_stalls_which_means_nothing() -> None:
    game = deal("R2 Y3 G3 W3 B2  R2 Y2 G2 W2 B3")
    assert play(game, 2) == [rank_hint(1, 1), DISCARD_0]


def test_a_rank_hint_of_card_0_with_all_tokens_is_taken_for_a_stall_even_where_it_is_meant() -> None:
    game = deal("R2 Y3 G3 W3 B2  R1 R3 Y2 Y3 Y4")
    assert play(game, 2) == [rank_hint(1, 0), DISCARD_0]


def test_only_the_player_who_follows_the_receiver_can_stall() -> None:
    game = deal("R2 Y3 G3 W3 B2  R1 R3 Y2 Y3 Y4  R4 Y4 G4 W4 B4", num_players=3)
    assert play(game, 2) == [rank_hint(1, 0), PLAY_0]


def test_a_play_takes_back_the_marks_of_cards_that_may_be_the_same() -> None:
    game = deal("R2 Y3 G3 W3 B2  R3 R1 Y1 Y4 W2  G4")
    told = rank_hint(1, 0)
    assert play(game, 4) == [told, Action("play", slot=1), told, Action("play", slot=1)]


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_a_team_of_it_never_loses_a_life(preset: str, num_players: int) -> None:
    spec = make_spec(preset, num_players)
    if spec.hand_size == 1:
        return  # there a stall in the last round can reach a player that acts on it
    for seed in range(20):
        game = scripted_game(EnvConfig(preset=preset, players=num_players), [BOT] * num_players, seed=seed)
        assert game.lives == spec.max_lives


@pytest.mark.parametrize("num_players", [2, 5])
def test_a_seat_that_was_there_all_along_knows_no_more_than_one_that_reads_the_record(num_players: int) -> None:
    spec = make_spec("full", num_players)
    rng = random.Random(7)
    for seed in range(10):
        game = Game(spec, shuffled_deck(spec, "test", seed))
        seats = [seat_of("full", num_players, player) for player in range(num_players)]
        while not game.is_over:
            player = game.current_player
            move = seats[player].move(game.view(player))
            assert move == answer(game)
            game.apply(move if rng.random() < 0.8 else rng.choice(game.legal_actions()))
