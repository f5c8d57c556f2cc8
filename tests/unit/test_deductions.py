"""What a prompt works out, against a count of every hand that the player may hold."""

import random
import re
from collections import Counter

import pytest

from boards import random_game
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.conformance import check_games
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary, turn_prompt
from hanabi_grpo.envs.hanabi.prompts.deductions import Counted, own_card_word
from hanabi_grpo.envs.hanabi.rules import Game, make_spec
from hanabi_grpo.envs.hanabi.rules.history import last_hint_since
from hanabi_grpo.envs.hanabi.rules.presets import num_copies
from hanabi_grpo.envs.hanabi.rules.view import Card, Knowledge, PlayerView
from hanabi_grpo.sft.tiny_model import Recipe

BOARDS = (("laptop", 2), ("full", 2), ("full", 4), ("hle-very-small", 2))


def prompt(game: Game, player: int, deductions: str, style: str = "compact") -> str:
    return turn_prompt(game.view(player), style=style, legal_moves=False, deductions=deductions)  # type: ignore[arg-type]


def positions(preset: str, players: int) -> list[Game]:
    """Return random games that are not over."""
    games = [random_game(make_spec(preset, players), random.Random(seed)) for seed in range(60)]
    return [game for game in games if not game.is_over]


def unseen_cards(view: PlayerView) -> Counter[Card]:
    """Return how many of each card are out of the player's sight, counted from the whole deck."""
    unseen: Counter[Card] = Counter()
    for color in range(view.num_colors):
        for rank in range(view.num_ranks):
            unseen[Card(color, rank)] = num_copies(rank, view.num_ranks)
    unseen.subtract(view.discards)
    for hand in view.hands:
        unseen.subtract(hand)
    for color, height in enumerate(view.fireworks):
        unseen.subtract(Card(color, rank) for rank in range(height))
    return unseen


def possible_cards(view: PlayerView, known: Knowledge) -> Counter[Card]:
    """Return the cards that an own card may be, with how many of each are out of sight."""
    possible: Counter[Card] = Counter()
    for card, count in unseen_cards(view).items():
        if count > 0 and card.color in known.colors and card.rank in known.ranks:
            possible[card] = count
    return possible


def fits_now(view: PlayerView, card: Card) -> bool:
    return card.rank == view.fireworks[card.color]


def can_still_fit(view: PlayerView, card: Card) -> bool:
    """Return whether the stack can still grow up to this card and over it."""
    height = view.fireworks[card.color]
    if card.rank < height:
        return False
    for rank in range(height, card.rank + 1):
        num_discarded = view.discards.count(Card(card.color, rank))
        if num_discarded == num_copies(rank, view.num_ranks):
            return False
    return True


def expected_own_card_word(view: PlayerView, known: Knowledge) -> str:
    possible = possible_cards(view, known)
    if not any(can_still_fit(view, card) for card in possible):
        return "dead"
    num_fitting = sum(count for card, count in possible.items() if fits_now(view, card))
    share = num_fitting / possible.total()
    return "sure" if share == 1 else f"fit{int(5 * share)}"


def expected_card_word(view: PlayerView, card: Card) -> str:
    if fits_now(view, card):
        return "fits"
    if not can_still_fit(view, card):
        return "dead"
    num_others = num_copies(card.rank, view.num_ranks) - view.discards.count(card) - 1
    return "later" if num_others else "only"


@pytest.mark.parametrize(("preset", "players"), BOARDS)
def test_counted_words_are_the_count_over_all_cards_out_of_sight(preset: str, players: int) -> None:
    words = set()
    for game in positions(preset, players):
        view = game.view(game.current_player)
        counted = Counted(view)
        for known in view.own_hand:
            word = own_card_word(counted, known)
            assert word == expected_own_card_word(view, known)
            words.add(word)
        for hand in view.hands:
            for card in hand:
                assert counted.card_word(card) == expected_card_word(view, card)
    assert len(words) > 1


@pytest.mark.parametrize(("preset", "players"), BOARDS)
@pytest.mark.parametrize("style", ["compact", "full"])
@pytest.mark.parametrize("deductions", ["none", "counted", "joined", "recalled"])
def test_no_level_tells_more_than_a_player_knows(
    preset: str, players: int, style: str, deductions: str
) -> None:
    fields = {
        "preset": preset,
        "players": players,
        "observation": style,
        "deductions": deductions,
    }
    setup = registry.setup("hanabi", fields)
    check_games(registry.get("hanabi"), setup.config, num_episodes=3)
    assert setup.spec.hash == f"{make_spec(preset, players).hash}-{deductions}"


@pytest.mark.parametrize(("preset", "players"), BOARDS)
@pytest.mark.parametrize("deductions", ["none", "counted", "joined", "recalled"])
def test_every_word_of_a_level_is_in_its_vocabulary(
    preset: str, players: int, deductions: str
) -> None:
    vocabulary = compact_vocabulary(make_spec(preset, players), deductions)  # type: ignore[arg-type]
    for game in positions(preset, players):
        words = prompt(game, 0, deductions).split()
        assert set(words) <= set(vocabulary)


@pytest.mark.parametrize(("preset", "players"), BOARDS)
def test_joined_words_say_what_the_counted_ones_say(preset: str, players: int) -> None:
    for game in positions(preset, players):
        player = game.current_player
        pieces = prompt(game, player, "joined").replace(".", " ").split()
        counted = []
        for word in prompt(game, player, "counted").split():
            # There an own card's word is behind its slot.
            slot = re.match(r"slot\d", word)
            counted += [slot[0], word.removeprefix(slot[0])] if slot else [word]
        assert pieces == counted
        sentences = [prompt(game, player, level, "full") for level in ("counted", "joined")]
        assert sentences[0] == sentences[1]


def without_slots(text: str) -> str:
    """Return the joined words of an observation whose cards have slots."""
    return re.sub(r"([A-Z]\d[a-z]+)\.(\d) (c[A-Z]+\.r\d+)", r"\1.\3", text)


@pytest.mark.parametrize("players", [2, 3, 5])
def test_a_recalled_hint_comes_with_the_hands_that_giver_and_reader_saw(players: int) -> None:
    num_recalled = 0
    num_changed = 0
    for game in positions("full", players):
        reader = game.current_player
        recalled = prompt(game, reader, "recalled")
        present, _, past = recalled.partition(" then ")
        assert without_slots(present) == prompt(game, reader, "joined")
        index = last_hint_since(game.view(reader), reader)
        if index is None or players == 2:
            assert not past
            continue
        giver = game.events[index].player
        then = Game(game.spec, game.deck)
        for event in game.events[:index]:
            then.apply(event.action)
        expected = []
        for offset in range(1, players):
            seat = (reader + offset) % players
            if seat == giver:
                continue
            expected.append(f"player_{seat}")
            for slot, card in enumerate(then.hands[seat]):
                use = expected_card_word(then.view(reader), card)
                expected.append(f"{slot}.{card}.{use}")
                num_changed += use != expected_card_word(game.view(reader), card)
        assert past.split() == expected
        num_recalled += 1
        sentences = prompt(game, reader, "recalled", "full")
        assert f"When player_{giver} gave the last hint, you both saw:" in sentences
    assert (num_recalled > 10) == (players > 2)
    assert (num_changed > 0) == (players > 2)


def test_levels_differ_in_what_they_say_of_one_position() -> None:
    game = next(game for game in positions("full", 2) if game.view(game.current_player).hints < 6)
    player = game.current_player
    none = prompt(game, player, "none")
    possible = prompt(game, player, "possible")
    counted = prompt(game, player, "counted")
    assert len({none, possible, counted}) == 3
    by_default = turn_prompt(game.view(player), style="compact", legal_moves=False)
    assert possible == by_default
    assert " last " in counted
    assert " last " not in possible
    sentences = prompt(game, player, "counted", "full")
    assert "what the cards you see leave of it" in sentences
    assert "can be played" in sentences


def test_a_tiny_model_knows_the_words_of_its_level_and_the_shipped_recipe_is_the_same() -> None:
    plain = Recipe.of("hanabi", num_games=1)
    counted = Recipe.of("hanabi", num_games=1, deductions="counted")
    assert plain.hash(plain.chat()) != counted.hash(counted.chat())
    assert counted.setups()[0].spec.hash.endswith("-counted")
    new_words = set(counted.words()) - set(plain.words())
    assert {"slot0sure", "slot2fit4", "R1fits", "Y2only", "last", "good", "bad"} <= new_words
    num_own_card_words = 3 * 7
    num_card_words = 4 * 4
    num_event_words = 3
    assert len(new_words) == num_own_card_words + num_card_words + num_event_words
