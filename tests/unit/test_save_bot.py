"""The save bot: its players read a hint as it is meant, and it saves the last cards of a kind."""

import random
from collections.abc import Iterator
from statistics import fmean

import pytest

from boards import scripted_game
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_move
from hanabi_grpo.envs.hanabi.policies.rules import next_seat
from hanabi_grpo.envs.hanabi.policies.save import Offer, last_reading, offers, plan_of
from hanabi_grpo.envs.hanabi.policies.save_aloud import thought_sentences, thought_words
from hanabi_grpo.envs.hanabi.prompts.deductions import Counted
from hanabi_grpo.envs.hanabi.rules import Card, Game, make_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.actions import hint_color, hint_rank
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, Action, PlayerView

BOT = "save-bot"
BOARDS = [("full", 2), ("full", 3), ("full", 5), ("marshal-full", 2), ("laptop", 2), ("small", 4)]


def table(preset: str, players: int, seed: int) -> Game:
    spec = make_spec(preset, players)
    return Game(spec, shuffled_deck(spec, "eval", seed))


def moves_of(game: Game) -> Iterator[Action]:
    """Play a game of save bots, and yield each move before it is made."""
    while not game.is_over:
        move = rule_move(BOT, game.view(game.current_player), random.Random(0))
        yield move
        game.apply(move)


def offer_in(view: PlayerView, hint: Action) -> Offer:
    """Return what a player offers with a hint."""
    [offer] = [offer for offer in offers(view) if offer.action == hint]
    return offer


@pytest.mark.parametrize(("preset", "players"), BOARDS)
def test_the_next_player_reads_every_hint_as_its_giver_expects(preset: str, players: int) -> None:
    num_read = 0
    for seed in range(10):
        game = table(preset, players, seed)
        for move in moves_of(game):
            if move.target != next_seat(game.view(game.current_player)):
                continue
            offer = offer_in(game.view(game.current_player), move)
            later = game.copy()
            later.apply(move)
            if later.is_over:
                continue
            view = later.view(later.current_player)
            assert last_reading(view) == offer.reading
            assert view.own_hand == offer.hand
            num_read += 1
    assert num_read > 20


def test_a_player_that_is_told_nothing_does_what_the_one_before_it_expects() -> None:
    num_expected = 0
    num_discards = 0
    for seed in range(30):
        game = table("full", 2, seed)
        plan = None
        for move in moves_of(game):
            is_told = last_reading(game.view(game.current_player)) is not None
            if plan is not None and move.kind == "discard" and not is_told:
                num_discards += 1
                num_expected += (plan.kind, plan.slot) == (move.kind, move.slot)
            view = game.view(game.current_player)
            plan = plan_of(view, view.knowledge[next_seat(view)])
    # It knows more of its own cards from those of the other player than that player can know.
    assert num_expected > 0.9 * num_discards
    assert num_discards > 200


def test_fewer_last_cards_of_a_kind_are_discarded_than_by_the_focus_bot() -> None:
    def mean_lost(bot: str) -> float:
        num_lost = []
        for seed in range(60):
            game = table("full", 2, seed)
            while not game.is_over:
                game.apply(rule_move(bot, game.view(game.current_player), random.Random(0)))
            counted = Counted(game.view(0))
            num_lost.append(game.spec.max_score - sum(counted.reachable))
        return fmean(num_lost)

    assert mean_lost(BOT) < 0.6 * mean_lost("focus-bot")


@pytest.mark.parametrize(("preset", "least_gain"), [("full", 1.2), ("marshal-full", 0.7)])
def test_it_scores_more_than_the_focus_bot(preset: str, least_gain: float) -> None:
    config = EnvConfig(preset=preset)

    def mean_score(bot: str) -> float:
        return fmean(scripted_game(config, [bot, bot], seed=seed).score for seed in range(150))

    assert mean_score(BOT) > mean_score("focus-bot") + least_gain


def cards_of(text: str) -> tuple[Card, ...]:
    cards = []
    for name in text.split():
        cards.append(Card(COLOR_LETTERS.index(name[0]), int(name[1]) - 1))
    return tuple(cards)


DECK = "R3 Y3 G4 G5 R1 Y1 G4 Y4 R1 R1 R2 R2 R3 R4 R4 R5 Y1 Y1 Y2 Y2 Y3 Y4 Y5 G1 G1 G1 G2 G2 G3 G3"
"""A deck of three colours. The hands are R3 Y3 G4 and G5 R1 Y1."""


def test_a_thought_says_what_the_rules_look_at() -> None:
    game = Game(make_spec("3x5-hand3-info3-life3", 2), cards_of(DECK))
    words = []
    sentences = []
    for _ in range(6):
        view = game.view(game.current_player)
        move = rule_move(BOT, view, random.Random(0))
        words.append(thought_words(move, view, "recalled"))
        sentences.append(thought_sentences(move, view))
        game.apply(move)
    assert words == [
        # The green 5 would go, but a player that is told to play does not discard.
        "mate Discard G5only.0 me Hint Y1fits.2 Play",
        "mate Discard R3later.0 me slot2 sure.cRYG.r1 Play slot1 sure.cRYG.r1",
        # The other 1 may have become a second yellow 1, as far as its player knows.
        "mate Discard G5only.0 me Hint R1fits.1 Play",
        "mate Discard R3later.0 me slot1 sure.cR.r1 Play",
        # Its player knows that the card is no 1, so it does not read "play".
        "mate Discard G5only.0 me Hint G5only.0 Discard Y4later.2",
        "mate Discard R3later.0 me slot0 fit0.cG.r2345 Discard slot2 fit1.cRY.r12345",
    ]
    assert sentences[1] == (
        "If told nothing, player_0 will discard slot 0, red 3.\n"
        "The last hint tells me to play slot 2 (colour any, rank 1 (hinted)).\n"
        "I can surely play slot 1 (colour any, rank 1 (hinted))."
    )
    assert sentences[4] == (
        "If told nothing, player_1 will discard slot 0, green 5.\n"
        "A hint can tell player_1 to keep slot 0, green 5.\n"
        "After it, player_1 will discard slot 2, yellow 4."
    )
    assert sentences[5] == (
        "If told nothing, player_0 will discard slot 0, red 3.\n"
        "The last hint tells me to keep slot 0 (colour green (hinted), rank 2, 3, 4 or 5).\n"
        "I can discard slot 2 (colour red or yellow, rank any)."
    )


@pytest.mark.parametrize(
    ("hint", "reading"),
    [
        # The chop is slot 0.
        (hint_color(1, 0), (0, "keep")),
        (hint_rank(1, 0), (0, "play")),
        # The newest green card.
        (hint_color(1, 2), (3, "play")),
        # No 4 fits.
        (hint_rank(1, 3), (2, "keep")),
        (hint_rank(1, 4), (4, "keep")),
    ],
)
def test_a_colour_says_to_keep_the_chop_and_any_other_hint_to_play_what_may_fit(
    hint: Action, reading: tuple[int, str]
) -> None:
    view = table("full", 2, 0).view(0)
    view = view._replace(hands=((), cards_of("R1 G3 R4 G2 W5")))
    assert offer_in(view, hint).reading == reading


def test_the_highest_rank_says_to_keep_the_chop() -> None:
    view = table("full", 2, 0).view(0)
    # The red 5 fits.
    view = view._replace(hands=((), cards_of("R5 G3 Y4 G2 W1")), fireworks=(4, 0, 0, 0, 0))
    assert offer_in(view, hint_rank(1, 4)).reading == (0, "keep")


def test_nobody_is_told_anything_in_the_last_turn() -> None:
    """A card that fits is played instead."""
    num_last_turns = 0
    for seed in range(40):
        game = table("full", 2, seed)
        for move in moves_of(game):
            view = game.view(game.current_player)
            beliefs = Beliefs(view)
            if view.turns_left != 1 or not any(map(beliefs.surely_fits, view.own_hand)):
                continue
            assert move.kind == "play"
            num_last_turns += 1
    assert num_last_turns > 5
