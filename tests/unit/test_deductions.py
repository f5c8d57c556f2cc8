"""What a prompt works out for its reader, against a count of every hand that the player may
hold.
"""

import random
from collections import Counter
from itertools import chain

import pytest

from boards import random_game
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.conformance import check_games
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary, turn_prompt
from hanabi_grpo.envs.hanabi.prompts.deductions import Counted, own_card_word
from hanabi_grpo.envs.hanabi.rules import Game, make_spec
from hanabi_grpo.envs.hanabi.rules.presets import num_copies
from hanabi_grpo.envs.hanabi.rules.view import Card, Knowledge, PlayerView
from hanabi_grpo.sft.tiny_model import Recipe

BOARDS = (("laptop", 2), ("full", 2), ("full", 4), ("hle-very-small", 2))


def prompt(game: Game, player: int, deductions: str, style: str = "compact") -> str:
    return turn_prompt(game.view(player), style=style, legal_moves=False, deductions=deductions)  # type: ignore[arg-type]


def positions(preset: str, players: int) -> list[Game]:
    games = (random_game(make_spec(preset, players), random.Random(seed)) for seed in range(60))
    return [game for game in games if not game.is_over]


def cards_of(view: PlayerView, known: Knowledge) -> Counter[Card]:
    """Return the cards that an own card may be and how many of each are out of sight, counted from
    the whole deck.
    """
    kinds = [
        Card(color, rank) for color in range(view.num_colors) for rank in range(view.num_ranks)
    ]
    left = Counter({kind: num_copies(kind.rank, view.num_ranks) for kind in kinds})
    left.subtract(chain(view.discards, *view.hands))
    left.subtract(
        Card(color, rank) for color, height in enumerate(view.fireworks) for rank in range(height)
    )
    return Counter(
        {
            kind: left[kind]
            for kind in kinds
            if kind.color in known.colors and kind.rank in known.ranks
        }
    )


@pytest.mark.parametrize(("preset", "players"), BOARDS)
def test_counted_words_are_the_count_over_all_cards_out_of_sight(preset: str, players: int) -> None:
    seen = Counter[str]()
    for game in positions(preset, players):
        view = game.view(game.current_player)
        gone = Counter(view.discards)

        def reached(card: Card, gone: Counter[Card] = gone, view: PlayerView = view) -> bool:
            below = (
                Card(card.color, rank) for rank in range(view.fireworks[card.color], card.rank + 1)
            )
            return card.rank >= view.fireworks[card.color] and all(
                gone[one] < num_copies(one.rank, view.num_ranks) for one in below
            )

        counted = Counted(view)
        for known in view.own_hand:
            possible = cards_of(view, known)
            fits = sum(
                count for card, count in possible.items() if card.rank == view.fireworks[card.color]
            )
            word = own_card_word(counted, known)
            if not any(reached(card) for card in +possible):
                assert word == "dead"
            else:
                share = fits / possible.total()
                assert word == ("sure" if share == 1 else f"fit{int(5 * share)}")
            seen[word] += 1
        for card in chain(*view.hands):
            now = card.rank == view.fireworks[card.color]
            only = gone[card] + 1 == num_copies(card.rank, view.num_ranks)
            later = "only" if only else "later"
            assert counted.card_word(card) == ("fits" if now else later if reached(card) else "dead")
    assert len(seen) > 1


@pytest.mark.parametrize(("preset", "players"), BOARDS)
@pytest.mark.parametrize("style", ["compact", "full"])
def test_no_level_tells_more_than_a_player_knows_and_every_word_is_in_the_vocabulary(
    preset: str, players: int, style: str
) -> None:
    environment = registry.get("hanabi")
    for deductions in ("none", "counted"):
        fields = {
            "preset": preset,
            "players": players,
            "observation": style,
            "deductions": deductions,
        }
        setup = registry.setup("hanabi", fields)
        check_games(environment, setup.config, num_episodes=3)
        assert setup.spec.hash == f"{make_spec(preset, players).hash}-{deductions}"
        if style == "compact":
            words = set(compact_vocabulary(make_spec(preset, players), deductions))  # type: ignore[arg-type]
            assert {
                word
                for game in positions(preset, players)
                for word in prompt(game, 0, deductions).split()
            } <= words


def test_levels_differ_in_what_they_say_of_one_position() -> None:
    game = next(game for game in positions("full", 2) if game.view(game.current_player).hints < 6)
    player = game.current_player
    texts = [prompt(game, player, level) for level in ("none", "possible", "counted")]
    assert len(set(texts)) == 3 and prompt(game, player, "possible") == turn_prompt(
        game.view(player), style="compact", legal_moves=False
    )
    assert " last " in texts[2] and " last " not in texts[1]
    whole = prompt(game, player, "counted", "full")
    assert "what the cards you see leave of it" in whole and "can be played" in whole


def test_a_tiny_model_knows_the_words_of_its_level_and_the_shipped_recipe_is_the_same() -> None:
    plain = Recipe.of("hanabi", num_games=1)
    counted = Recipe.of("hanabi", num_games=1, deductions="counted")
    assert plain.hash(plain.chat()) != counted.hash(counted.chat())
    assert counted.setups()[0].spec.hash.endswith("-counted")
    new = set(counted._words()) - set(plain._words())
    assert {"slot0sure", "slot2fit4", "R1fits", "Y2only", "last", "good", "bad"} <= new
    assert len(new) == 3 * 7 + 4 * 4 + 3
