"""Boards are what they are called, and impossible ones never reach OpenSpiel."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game
from hanabi_grpo.envs.hanabi.rules import PRESETS, Game, GameSpec, make_spec, shuffled_deck
from hanabi_grpo.errors import GameParameterError

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


@pytest.mark.parametrize(
    ("preset", "num_players", "colors_ranks_hand_hints_lives", "deck_size", "max_score", "reachable_max"),
    [
        ("marshal-mini", 2, (2, 2, 3, 3, 3), 8, 4, 4),
        ("marshal-simple", 2, (3, 2, 5, 8, 3), 12, 6, 4),
        ("marshal-full", 2, (3, 3, 5, 8, 3), 18, 9, 9),
        ("laptop", 2, (2, 2, 3, 3, 1), 8, 4, 4),
        ("mini", 2, (2, 2, 3, 3, 3), 8, 4, 4),
        ("mini", 3, (2, 2, 2, 3, 3), 8, 4, 4),
        ("mini", 4, (2, 2, 2, 3, 3), 8, 4, 4),
        ("mini", 5, (2, 2, 1, 3, 3), 8, 4, 4),
        ("simple", 2, (3, 2, 4, 8, 3), 12, 6, 6),
        ("simple", 3, (3, 2, 3, 8, 3), 12, 6, 6),
        ("simple", 4, (3, 2, 2, 8, 3), 12, 6, 6),
        ("simple", 5, (3, 2, 2, 8, 3), 12, 6, 6),
        ("small", 2, (2, 5, 6, 8, 3), 20, 10, 10),
        ("small", 3, (2, 5, 4, 8, 3), 20, 10, 10),
        ("small", 4, (2, 5, 3, 8, 3), 20, 10, 10),
        ("small", 5, (2, 5, 3, 8, 3), 20, 10, 10),
        ("hle-small", 2, (2, 5, 2, 3, 1), 20, 10, 10),
        ("hle-very-small", 2, (1, 5, 2, 3, 1), 10, 5, 5),
        ("full", 2, (5, 5, 5, 8, 3), 50, 25, 25),
        ("full", 3, (5, 5, 5, 8, 3), 50, 25, 25),
        ("full", 4, (5, 5, 4, 8, 3), 50, 25, 25),
        ("full", 5, (5, 5, 4, 8, 3), 50, 25, 25),
    ],
)
def test_a_preset_is_this_board(
    preset: str,
    num_players: int,
    colors_ranks_hand_hints_lives: tuple[int, ...],
    deck_size: int,
    max_score: int,
    reachable_max: int,
) -> None:
    spec = make_spec(preset, num_players)
    values = (spec.num_colors, spec.num_ranks, spec.hand_size, spec.max_hints, spec.max_lives)
    assert values == colors_ranks_hand_hints_lives
    assert (spec.preset, spec.num_players) == (preset, num_players)
    assert (spec.deck_size, spec.max_score, spec.reachable_max) == (deck_size, max_score, reachable_max)


def test_the_presets_are_these_and_each_takes_two_players_by_default() -> None:
    assert list(PRESETS) == [
        "marshal-mini", "marshal-simple", "marshal-full", "laptop", "mini", "simple", "small",
        "hle-small", "hle-very-small", "full",
    ]  # fmt: skip
    assert {make_spec(preset).num_players for preset in PRESETS} == {2}
    assert len(ALL_BOARDS) == 22


@pytest.mark.parametrize(("preset", "num_players"), [(p, n) for p, n in ALL_BOARDS if p in ("mini", "simple", "small")])
def test_these_boards_have_the_largest_hand_that_still_allows_every_point(preset: str, num_players: int) -> None:
    spec = make_spec(preset, num_players)
    assert spec.reachable_max == spec.max_score
    if num_players * (spec.hand_size + 1) <= spec.deck_size:
        assert make_spec(preset, num_players, hand_size=spec.hand_size + 1).reachable_max < spec.max_score


def test_the_hash_names_rules_and_deals_and_not_the_preset() -> None:
    assert (make_spec("laptop").hash, make_spec("laptop").rules_hash) == ("6d2c920b5b32", "2beb8aa616bb")
    assert make_spec("full").hash == "10743f8424a0"
    assert make_spec("marshal-mini").hash == make_spec("mini").hash
    assert make_spec("mini", max_lives=1).hash == make_spec("laptop").hash
    hashes = {
        make_spec("full", **{name: value}).hash
        for name, value in [("num_colors", 4), ("num_ranks", 4), ("hand_size", 4), ("max_hints", 4), ("max_lives", 4)]
    }
    assert len(hashes | {make_spec("full").hash, make_spec("full", 3).hash}) == 7


def test_boards_with_fewer_than_a_million_decks_deal_all_of_them() -> None:
    # Orders of the cards over orders of equal cards: 8! / (3! 3!), 10! / (3! 2! 2! 2!), 12! / (3! 3! 3!).
    counts = {"laptop": 1120, "hle-very-small": 75_600, "marshal-simple": 2_217_600}
    assert {name: make_spec(name).num_decks for name in counts} == counts
    assert {name for name in PRESETS if make_spec(name).deals_all_decks} == {
        *("laptop", "marshal-mini", "mini", "hle-very-small")
    }


@pytest.mark.parametrize(
    ("preset", "num_players", "overrides", "message"),
    [
        ("full", 7, {}, "num_players=7: Hanabi needs 2 to 5 players."),
        ("full", 1, {}, "num_players=1: Hanabi needs 2 to 5 players."),
        ("full", -3, {}, "num_players=-3: Hanabi needs 2 to 5 players."),
        ("full", 2.0, {}, "num_players=2.0: Hanabi needs 2 to 5 players; give a whole number."),
        ("full", True, {}, "num_players=True: Hanabi needs 2 to 5 players; give a whole number."),
        ("laptop", 3, {}, "num_players=3: preset 'laptop' is for 2 players; boards for 3: mini, simple, small, full."),
        ("full", 2, {"num_colors": 0}, "num_colors=0: a board has 1 to 5 colours."),
        ("full", 2, {"num_colors": 6}, "num_colors=6: a board has 1 to 5 colours."),
        ("full", 2, {"num_ranks": 0}, "num_ranks=0: a board has 1 to 5 ranks."),
        ("full", 2, {"num_ranks": 6}, "num_ranks=6: a board has 1 to 5 ranks."),
        ("full", 2, {"num_ranks": "5"}, "num_ranks='5': a board has 1 to 5 ranks; give a whole number."),
        ("full", 2, {"hand_size": 0}, "hand_size=0: a hand holds 1 to 8 cards."),
        ("full", 2, {"hand_size": -1}, "hand_size=-1: a hand holds 1 to 8 cards."),
        ("full", 2, {"hand_size": 9}, "hand_size=9: a hand holds 1 to 8 cards."),
        ("full", 2, {"max_lives": 0}, "max_lives=0: allowed are 1 to 100 lives."),
        ("full", 2, {"max_lives": -1}, "max_lives=-1: allowed are 1 to 100 lives."),
        ("full", 2, {"max_hints": -1}, "max_hints=-1: allowed are 0 to 100 hint tokens."),
        ("full", 2, {"max_hints": None}, "max_hints=None: allowed are 0 to 100 hint tokens; give a whole number."),
        (
            "mini",
            2,
            {"hand_size": 5},
            "hand_size=5: 2 players would need 10 cards, the 2x2 deck has 8; pass hand_size=4 or less.",
        ),
        (
            "mini",
            5,
            {"num_colors": 1},
            "hand_size=1: 5 players would need 5 cards, the 1x2 deck has 4; "
            "take fewer players, or more colours or ranks.",
        ),
        (
            "full",
            2,
            {"hints": 3},
            "hints=3: no such parameter; did you mean 'max_hints'? "
            "allowed: num_colors, num_ranks, hand_size, max_hints, max_lives.",
        ),
    ],
)
def test_impossible_parameters_are_refused_with_this_message(
    preset: str, num_players: int, overrides: dict[str, int], message: str
) -> None:
    with pytest.raises(GameParameterError, match=f"^{re.escape(message)}$"):
        make_spec(preset, num_players, **overrides)


@pytest.mark.parametrize(
    ("preset", "hint"),
    [("laptpo", "did you mean 'laptop'?"), ("Full", "did you mean 'full'?"), ("chess", "known presets: marshal-mini,")],
)
def test_an_unknown_preset_gets_a_hint(preset: str, hint: str) -> None:
    with pytest.raises(GameParameterError, match=re.escape(hint)):
        make_spec(preset)


@pytest.mark.parametrize("preset", [None, 3, ["full"]])
def test_a_preset_that_is_no_name_is_refused(preset: object) -> None:
    with pytest.raises(GameParameterError, match="no such board"):
        make_spec(preset)


def test_a_spec_cannot_be_changed_into_an_impossible_one() -> None:
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
    assert game.num_turns <= spec.max_turns


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=20, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_game_exceeds_the_bounds_of_its_spec(preset: str, num_players: int, rng) -> None:
    spec = make_spec(preset, num_players)
    game = random_game(spec, rng)
    assert game.num_turns <= spec.max_turns
    assert game.score_kept <= spec.reachable_max


def test_a_game_that_hints_whenever_it_can_meets_the_bound_on_turns_closely() -> None:
    spec = make_spec("full")
    game = Game(spec, shuffled_deck(spec, "train", 0))
    while not game.is_over:
        actions = game.legal_actions()
        hints = [action for action in actions if action.kind.startswith("hint")]
        discards = [action for action in actions if action.kind == "discard"]
        game.apply((hints or discards)[0])
    assert spec.max_turns == 95
    assert (
        game.num_turns == 89
    )  # 8 hints, 40 discards with a hint between each two, 2 last moves; no colour is finished
