"""Deals never change, suites hold what they promise, impossible boards never reach OpenSpiel."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS
from hanabi_grpo.envs.base import stable_hash
from hanabi_grpo.envs.hanabi.rules import (
    PRESETS,
    Card,
    Game,
    GameSpec,
    make_spec,
    recorded_spec,
    shuffled_deck,
)
from hanabi_grpo.envs.hanabi.rules.presets import num_decks
from hanabi_grpo.errors import GameParameterError

LAPTOP = make_spec("laptop")
SIMPLE = make_spec("marshal-simple")
FULL = make_spec("full")


def deck_text(deck: tuple[Card, ...]) -> str:
    return " ".join(map(str, deck))


GOLDEN = {
    ("laptop", "train", 0): "Y1 Y1 Y2 Y1 R1 R1 R1 R2",
    ("laptop", "train", 17): "R1 Y1 Y1 R1 Y1 Y2 R1 R2",
    ("laptop", "eval", 0): "Y2 R1 Y1 R1 Y1 R2 Y1 R1",
    ("hle-very-small", "eval", 3): "R1 R3 R4 R3 R2 R5 R1 R2 R1 R4",
    ("marshal-simple", "train-warm-start", 2**63 - 1): "R1 G1 Y1 Y1 Y2 R1 Y1 R1 R2 G2 G1 G1",
    ("full", "train", 0): (
        "G1 W2 B5 W2 Y2 G3 G2 G5 R4 W1 B1 R3 Y5 R2 B2 B1 G4 B3 Y1 G3 W4 G2 Y3 B4 G1 "
        "W5 B1 R1 Y4 W3 G4 R1 B2 B4 Y1 R4 Y2 R2 W1 Y4 Y3 R5 G1 R1 Y1 W3 R3 W1 W4 B3"
    ),
    ("full", "eval", 999): (
        "R1 G4 B1 W5 G3 Y1 Y5 B4 Y3 G1 R4 W2 Y4 B5 G1 G5 R1 B4 G3 W1 Y2 Y4 G4 Y1 Y3 "
        "R2 W1 R3 B3 B1 B2 R2 R5 R1 B1 W3 W3 Y1 W1 B3 G2 B2 R4 Y2 W4 W4 R3 G1 G2 W2"
    ),
}
"""Decks by preset, suite and seed."""


@pytest.mark.parametrize(("preset", "suite", "seed"), GOLDEN)
def test_this_deal_never_changes(preset: str, suite: str, seed: int) -> None:
    deck = shuffled_deck(make_spec(preset), suite, seed)
    assert deck_text(deck) == GOLDEN[preset, suite, seed]


@pytest.mark.parametrize("suite", ["train", "train-warm-start", "eval", "test"])
def test_every_suite_of_a_board_with_few_decks_deals_all_of_them_equally_often(suite: str) -> None:
    num_deals = 20_000
    num_decks = 1120
    counts = Counter(shuffled_deck(LAPTOP, suite, seed) for seed in range(num_deals))
    assert len(counts) == num_decks
    expected = num_deals / num_decks
    chi_square = sum((count - expected) ** 2 for count in counts.values()) / expected
    # 1119 degrees of freedom: mean 1119, standard deviation 47.
    assert abs(chi_square - 1119) < 5 * 47


def dealt_decks(spec: GameSpec, suites: list[str]) -> set[tuple[Card, ...]]:
    """Return the decks of 4000 deals of each suite."""
    decks = set()
    for suite in suites:
        for seed in range(4000):
            decks.add(shuffled_deck(spec, suite, seed))
    return decks


@pytest.mark.parametrize(("spec", "prefix"), [(LAPTOP, "split-"), (SIMPLE, "split-"), (SIMPLE, "")])
def test_training_and_held_out_suites_share_no_deck(spec: GameSpec, prefix: str) -> None:
    training = dealt_decks(spec, [f"{prefix}train", f"{prefix}train-2"])
    held_out = dealt_decks(spec, [f"{prefix}eval", f"{prefix}test"])
    assert training.isdisjoint(held_out)
    if spec is LAPTOP:
        # Every deck of the board is on one side.
        assert len(training) == 574
        assert len(held_out) == 546


def test_a_record_of_version_0_1_names_the_deck_that_was_dealt_then() -> None:
    old = recorded_spec("laptop", 2, "2beb8aa616bb")
    assert old is not None
    assert deck_text(shuffled_deck(old, "train", 0)) == "R1 Y1 R1 R1 R2 Y1 Y1 Y2"
    assert recorded_spec("laptop", 2, "6d2c920b5b32") == LAPTOP
    assert recorded_spec("laptop", 2, "000000000000") is None


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", None, True])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    message = r"^seed=.*: a deal's seed is a whole number from 0 to 2\*\*63 - 1"
    with pytest.raises(GameParameterError, match=message):
        shuffled_deck(LAPTOP, "train", seed)


@pytest.mark.parametrize("suite", ["", "a|b", "train ", "-x", "x" * 65, "é", None, 3])
def test_what_is_no_suite_is_refused(suite: Any) -> None:
    with pytest.raises(GameParameterError, match=r"a suite is 1 to 64 letters"):
        shuffled_deck(LAPTOP, suite, 0)


# --- Boards

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
    specs = [make_spec(preset, num_players) for preset, num_players in ALL_BOARDS]
    assert len(specs) == 22
    assert stable_hash([(spec.preset, spec.hash) for spec in specs]) == "91154d05e711"
    assert {make_spec(preset).num_players for preset in PRESETS} == {2}
    incomplete = {spec.preset for spec in specs if spec.reachable_max < spec.max_score}
    assert incomplete == {"marshal-simple"}


def test_the_hash_names_rules_and_deals_and_not_the_preset() -> None:
    assert LAPTOP.hash == "6d2c920b5b32"
    assert LAPTOP.rules_hash == "2beb8aa616bb"
    assert FULL.hash == "10743f8424a0"
    assert make_spec("marshal-mini").hash == make_spec("mini").hash
    assert replace(make_spec("mini"), max_lives=1).hash == LAPTOP.hash


def test_every_parameter_changes_the_hash() -> None:
    specs = [
        FULL,
        make_spec("full", 3),
        replace(FULL, num_colors=4),
        replace(FULL, num_ranks=4),
        replace(FULL, hand_size=4),
        replace(FULL, max_hints=4),
        replace(FULL, max_lives=4),
    ]
    assert len({spec.hash for spec in specs}) == 7


def test_boards_with_fewer_than_a_million_decks_deal_all_of_them() -> None:
    # Orders of the cards over orders of equal cards.
    assert num_decks(2, 2) == 1120  # 8! / (3! 3!)
    assert num_decks(1, 5) == 75_600  # 10! / (3! 2! 2! 2!)
    assert num_decks(3, 2) == 2_217_600  # 12! / (3! 3! 3!)
    all_decks = {name for name in PRESETS if make_spec(name).deals_all_decks}
    assert all_decks == {"laptop", "marshal-mini", "mini", "hle-very-small"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_players": 7},
            "num_players=7: Hanabi needs 2 to 5 players.",
        ),
        (
            {"num_players": True},
            "num_players=True: Hanabi needs 2 to 5 players; give a whole number.",
        ),
        (
            {"num_colors": 6},
            "num_colors=6: a board has 1 to 5 colours.",
        ),
        (
            {"num_ranks": "5"},
            "num_ranks='5': a board has 1 to 5 ranks; give a whole number.",
        ),
        (
            {"hand_size": 9},
            "hand_size=9: a hand holds 1 to 8 cards.",
        ),
        (
            {"max_lives": 0},
            "max_lives=0: allowed are 1 to 100 lives.",
        ),
        (
            {"max_hints": -1},
            "max_hints=-1: allowed are 0 to 100 hint tokens.",
        ),
        (
            {"num_colors": 2, "num_ranks": 2},
            "hand_size=5: 2 players would need 10 cards, the 2x2 deck has 8; pass hand_size=4 or "
            "less.",
        ),
        (
            {"num_players": 5, "num_colors": 1, "num_ranks": 2, "hand_size": 1},
            "hand_size=1: 5 players would need 5 cards, the 1x2 deck has 4; take fewer players, "
            "or more colours or ranks.",
        ),
    ],
)
def test_impossible_parameters_are_refused_with_this_message(
    changes: dict[str, int], message: str
) -> None:
    with pytest.raises(GameParameterError, match=f"^{re.escape(message)}$"):
        replace(FULL, **changes)


@pytest.mark.parametrize(
    ("preset", "hint"),
    [
        ("laptpo", "did you mean 'laptop'?"),
        ("chess", "known presets: marshal-mini,"),
        (None, "no such board"),
        (["full"], "no such board"),
    ],
)
def test_an_unknown_preset_gets_a_hint(preset: Any, hint: str) -> None:
    with pytest.raises(GameParameterError, match=re.escape(hint)):
        make_spec(preset)


def test_a_preset_for_other_numbers_of_players_names_the_boards_for_this_one() -> None:
    message = (
        "num_players=3: preset 'laptop' is for 2 players; boards for 3: mini, simple, small, full."
    )
    with pytest.raises(GameParameterError, match=f"^{re.escape(message)}$"):
        make_spec("laptop", 3)


@settings(max_examples=400, deadline=None)
@given(values=SPECS, seed=st.integers(0, 2**32))
def test_every_spec_is_refused_in_python_or_plays_to_the_end(
    values: dict[str, int], seed: int
) -> None:
    try:
        spec = GameSpec(**values)
    except GameParameterError:
        return
    game = Game(spec, shuffled_deck(spec, "train", seed))
    while not game.is_over:
        actions = game.legal_actions()
        game.apply(actions[seed % len(actions)])
    assert game.score_kept <= spec.reachable_max
    assert len(game.events) <= spec.max_turns
