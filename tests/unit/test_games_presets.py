"""Boards are what they are called, and impossible ones never reach OpenSpiel."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.envs.hanabi.rules import PRESETS, Game, GameSpec, make_spec, shuffled_deck
from hanabi_grpo.errors import GameParameterError

BOARDS = {
    "marshal-mini": (2, 2, 3, 3, {2: 3}, 8, 4),
    "marshal-simple": (3, 2, 8, 3, {2: 5}, 12, 6),
    "marshal-full": (3, 3, 8, 3, {2: 5}, 18, 9),
    "laptop": (2, 2, 3, 1, {2: 3}, 8, 4),
    "mini": (2, 2, 3, 3, {2: 3, 3: 2, 4: 2, 5: 1}, 8, 4),
    "simple": (3, 2, 8, 3, {2: 4, 3: 3, 4: 2, 5: 2}, 12, 6),
    "small": (2, 5, 8, 3, {2: 6, 3: 4, 4: 3, 5: 3}, 20, 10),
    "hle-small": (2, 5, 3, 1, {2: 2}, 20, 10),
    "hle-very-small": (1, 5, 3, 1, {2: 2}, 10, 5),
    "full": (5, 5, 8, 3, {2: 5, 3: 5, 4: 4, 5: 4}, 50, 25),
}
"""Colours, ranks, hint tokens, lives, cards in a hand by number of players, cards, most points."""
SPECS = st.builds(
    dict,
    preset=st.just("any"),
    num_players=st.integers(0, 7),
    num_colors=st.integers(-1, 7),
    num_ranks=st.integers(-1, 7),
    hand_size=st.integers(-1, 10),
    max_hints=st.integers(-2, 10),
    max_lives=st.integers(-1, 5),
)


def test_the_presets_are_these_boards() -> None:
    assert list(PRESETS) == list(BOARDS) and {make_spec(preset).num_players for preset in PRESETS} == {2}
    for preset, (colors, ranks, hints, lives, hands, deck, most) in BOARDS.items():
        assert PRESETS[preset].players == tuple(hands)
        for num_players, hand in hands.items():
            spec = make_spec(preset, num_players)
            assert (spec.num_colors, spec.num_ranks, spec.max_hints, spec.max_lives) == (colors, ranks, hints, lives)
            assert (spec.hand_size, spec.deck_size, spec.max_score) == (hand, deck, most)
            assert spec.reachable_max == (4 if preset == "marshal-simple" else most)
            if preset in ("mini", "simple", "small") and num_players * (hand + 1) <= deck:
                assert make_spec(preset, num_players, hand_size=hand + 1).reachable_max < most, "the largest hand"


def test_the_hash_names_rules_and_deals_and_not_the_preset() -> None:
    assert (make_spec("laptop").hash, make_spec("laptop").rules_hash) == ("6d2c920b5b32", "2beb8aa616bb")
    assert make_spec("full").hash == "10743f8424a0"
    assert make_spec("marshal-mini").hash == make_spec("mini").hash
    assert make_spec("mini", max_lives=1).hash == make_spec("laptop").hash
    names = ("num_colors", "num_ranks", "hand_size", "max_hints", "max_lives")
    hashes = {make_spec("full", **{name: 4}).hash for name in names}
    assert len(hashes | {make_spec("full").hash, make_spec("full", 3).hash}) == 7


def test_boards_with_fewer_than_a_million_decks_deal_all_of_them() -> None:
    # Orders of the cards over orders of equal cards: 8! / (3! 3!), 10! / (3! 2! 2! 2!), 12! / (3! 3! 3!).
    counts = {"laptop": 1120, "hle-very-small": 75_600, "marshal-simple": 2_217_600}
    assert {name: make_spec(name).num_decks for name in counts} == counts
    all_decks = {name for name in PRESETS if make_spec(name).deals_all_decks}
    assert all_decks == {"laptop", "marshal-mini", "mini", "hle-very-small"}


@pytest.mark.parametrize(
    ("preset", "num_players", "overrides", "message"),
    [
        ("full", 7, {}, "num_players=7: Hanabi needs 2 to 5 players."),
        ("full", 1, {}, "num_players=1: Hanabi needs 2 to 5 players."),
        ("full", 2.0, {}, "num_players=2.0: Hanabi needs 2 to 5 players; give a whole number."),
        ("full", True, {}, "num_players=True: Hanabi needs 2 to 5 players; give a whole number."),
        ("laptop", 3, {}, "num_players=3: preset 'laptop' is for 2 players; boards for 3: mini, simple, small, full."),
        ("full", 2, {"num_colors": 6}, "num_colors=6: a board has 1 to 5 colours."),
        ("full", 2, {"num_ranks": 0}, "num_ranks=0: a board has 1 to 5 ranks."),
        ("full", 2, {"num_ranks": "5"}, "num_ranks='5': a board has 1 to 5 ranks; give a whole number."),
        ("full", 2, {"hand_size": -1}, "hand_size=-1: a hand holds 1 to 8 cards."),
        ("full", 2, {"hand_size": 9}, "hand_size=9: a hand holds 1 to 8 cards."),
        ("full", 2, {"max_lives": 0}, "max_lives=0: allowed are 1 to 100 lives."),
        ("full", 2, {"max_hints": -1}, "max_hints=-1: allowed are 0 to 100 hint tokens."),
        ("mini", 2, {"hand_size": 5}, "hand_size=5: 2 players would need 10 cards, the 2x2 deck has 8; pass hand_size="
                                      "4 or less."),
        ("mini", 5, {"num_colors": 1}, "hand_size=1: 5 players would need 5 cards, the 1x2 deck has 4; take fewer "
                                       "players, or more colours or ranks."),
        ("full", 2, {"hints": 3}, "hints=3: no such parameter; did you mean 'max_hints'? allowed: num_colors, "
                                  "num_ranks, hand_size, max_hints, max_lives."),
    ],
)  # fmt: skip
def test_impossible_parameters_are_refused_with_this_message(
    preset: str, num_players: int, overrides: dict[str, int], message: str
) -> None:
    with pytest.raises(GameParameterError, match=f"^{re.escape(message)}$"):
        make_spec(preset, num_players, **overrides)


def test_an_unknown_preset_gets_a_hint_and_a_spec_cannot_become_impossible() -> None:
    for preset, hint in (("laptpo", "did you mean 'laptop'?"), ("chess", "known presets: marshal-mini,"),
                         (None, "no such board"), (["full"], "no such board")):  # fmt: skip
        with pytest.raises(GameParameterError, match=re.escape(hint)):
            make_spec(preset)
    with pytest.raises(GameParameterError, match="hand_size=0"):
        dataclasses.replace(make_spec("full"), hand_size=0)


@settings(max_examples=400, deadline=None)
@given(values=SPECS, seed=st.integers(0, 2**32))
def test_every_spec_is_refused_in_python_or_plays_to_the_end(values: dict[str, int], seed: int) -> None:
    try:
        spec = GameSpec(**values)
    except GameParameterError:
        return
    game = Game(spec, shuffled_deck(spec, "train", seed))
    while not game.is_over:
        game.apply(game.legal_actions()[seed % len(game.legal_actions())])
    assert game.score_kept <= spec.reachable_max
    assert len(game.events) <= spec.max_turns


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_a_game_that_hints_whenever_it_can_stays_within_the_bound_on_turns(preset: str, num_players: int) -> None:
    spec = make_spec(preset, num_players)
    game = Game(spec, shuffled_deck(spec, "train", 0))
    while not game.is_over:
        actions = game.legal_actions()
        first = [next((one for one in actions if one.kind.startswith(kind)), None) for kind in ("hint", "discard")]
        game.apply(first[0] or first[1] or actions[0])
    assert len(game.events) <= spec.max_turns
    if (preset, num_players) == ("full", 2):
        # 8 hints, 40 discards with a hint between each two, 2 last moves; no colour is finished.
        assert (len(game.events), spec.max_turns) == (89, 95)
