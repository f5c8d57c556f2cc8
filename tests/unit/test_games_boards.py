"""Boards and their deals.

Deals stay what they are, suites hold what they promise, and impossible boards never reach
OpenSpiel.
"""

import re
from collections import Counter
from dataclasses import replace

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
    attainable,
    make_spec,
    recorded_spec,
    shuffled_deck,
)
from hanabi_grpo.envs.hanabi.rules.presets import num_decks
from hanabi_grpo.errors import GameParameterError

LAPTOP = make_spec("laptop")
SIMPLE = make_spec("marshal-simple")
FULL = make_spec("full")


def _text(deck: tuple[Card, ...]) -> str:
    return " ".join(map(str, deck))


GOLDEN = {
    ("laptop", "train", 0): "Y1 Y1 Y2 Y1 R1 R1 R1 R2",
    ("laptop", "train", 17): "R1 Y1 Y1 R1 Y1 Y2 R1 R2",
    ("laptop", "eval", 0): "Y2 R1 Y1 R1 Y1 R2 Y1 R1",
    ("hle-very-small", "eval", 3): "R1 R3 R4 R3 R2 R5 R1 R2 R1 R4",
    (
        "marshal-simple",
        "train-warm-start",
        9223372036854775807,
    ): "R1 G1 Y1 Y1 Y2 R1 Y1 R1 R2 G2 G1 G1",
    ("full", "train", 0): (
        "G1 W2 B5 W2 Y2 G3 G2 G5 R4 W1 B1 R3 Y5 R2 B2 B1 G4 B3 Y1 G3 W4 G2 Y3 B4 G1 "
        "W5 B1 R1 Y4 W3 G4 R1 B2 B4 Y1 R4 Y2 R2 W1 Y4 Y3 R5 G1 R1 Y1 W3 R3 W1 W4 B3"
    ),
    ("full", "eval", 999): (
        "R1 G4 B1 W5 G3 Y1 Y5 B4 Y3 G1 R4 W2 Y4 B5 G1 G5 R1 B4 G3 W1 Y2 Y4 G4 Y1 Y3 "
        "R2 W1 R3 B3 B1 B2 R2 R5 R1 B1 W3 W3 Y1 W1 B3 G2 B2 R4 Y2 W4 W4 R3 G1 G2 W2"
    ),
}


@pytest.mark.parametrize(("preset", "suite", "seed"), GOLDEN)
def test_this_deal_never_changes(preset: str, suite: str, seed: int) -> None:
    assert _text(shuffled_deck(make_spec(preset), suite, seed)) == GOLDEN[preset, suite, seed]


def test_every_suite_of_a_board_with_few_decks_deals_all_of_them_equally_often() -> None:
    num_deals = 20_000
    expected = num_deals / 1120
    for suite in ("train", "train-warm-start", "eval", "test"):
        counts = Counter(shuffled_deck(LAPTOP, suite, seed) for seed in range(num_deals))
        assert len(counts) == 1120
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        # 1119 degrees of freedom: mean 1119, standard deviation 47.
        assert abs(chi_square - 1119) < 5 * 47


def decks(spec: GameSpec, suite: str) -> set[tuple[Card, ...]]:
    return {shuffled_deck(spec, suite, seed) for seed in range(4000)}


@pytest.mark.parametrize(("spec", "prefix"), [(LAPTOP, "split-"), (SIMPLE, "split-"), (SIMPLE, "")])
def test_training_and_held_out_suites_share_no_deck(spec: GameSpec, prefix: str) -> None:
    training = decks(spec, f"{prefix}train") | decks(spec, f"{prefix}train-2")
    held_out = decks(spec, f"{prefix}eval") | decks(spec, f"{prefix}test")
    assert training.isdisjoint(held_out)
    if spec is LAPTOP:
        # Every deck of the board is on one side.
        assert len(training) == 574
        assert len(held_out) == 546


def test_a_record_of_version_0_1_names_the_deck_that_was_dealt_then() -> None:
    old = recorded_spec("laptop", 2, "2beb8aa616bb")
    assert old is not None
    assert _text(shuffled_deck(old, "train", 0)) == "R1 Y1 R1 R1 R2 Y1 Y1 Y2"
    assert recorded_spec("laptop", 2, "6d2c920b5b32") == LAPTOP
    assert recorded_spec("laptop", 2, "000000000000") is None


def test_what_is_no_seed_or_no_suite_is_refused() -> None:
    for seed in (-1, 2**63, 1.0, "1", None, True):
        with pytest.raises(
            GameParameterError,
            match=r"^seed=.*: must be a whole number from 0 to 2\*\*63 - 1",
        ):
            shuffled_deck(LAPTOP, "train", seed)
    for suite in ("", "a|b", "train ", "-x", "x" * 65, "é", None, 3):
        with pytest.raises(GameParameterError, match=r"must be 1 to 64 letters"):
            shuffled_deck(LAPTOP, suite, 0)


# --- Boards

SPECS = st.builds(
    dict,
    preset=st.just("any"),
    num_players=st.integers(1, 6),
    num_colors=st.integers(1, 6),
    num_ranks=st.integers(1, 6),
    hand_size=st.integers(0, 5),
    max_hints=st.integers(-1, 10),
    max_lives=st.integers(0, 5),
)


def test_the_presets_are_these_boards() -> None:
    specs = [make_spec(*board) for board in ALL_BOARDS]
    assert len(specs) == 22
    assert stable_hash([(spec.preset, spec.hash) for spec in specs]) == "91154d05e711"
    assert {make_spec(preset).num_players for preset in PRESETS} == {2}
    assert {spec.preset for spec in specs if spec.reachable_max < spec.max_score} == {
        "marshal-simple"
    }


def test_the_hash_names_rules_and_deals_and_not_the_preset() -> None:
    assert make_spec("laptop").hash == "6d2c920b5b32"
    assert make_spec("laptop").rules_hash == "2beb8aa616bb"
    assert make_spec("full").hash == "10743f8424a0"
    assert make_spec("marshal-mini").hash == make_spec("mini").hash
    assert replace(make_spec("mini"), max_lives=1).hash == make_spec("laptop").hash
    names = ("num_colors", "num_ranks", "hand_size", "max_hints", "max_lives")
    hashes = {replace(FULL, **{name: 4}).hash for name in names}
    assert len(hashes | {FULL.hash, make_spec("full", 3).hash}) == 7


def test_boards_with_fewer_than_a_million_decks_deal_all_of_them() -> None:
    # Orders of the cards over orders of equal cards.
    assert num_decks(2, 2) == 1120, "8! / (3! 3!)"
    assert num_decks(1, 5) == 75_600, "10! / (3! 2! 2! 2!)"
    assert num_decks(3, 2) == 2_217_600, "12! / (3! 3! 3!)"
    all_decks = {name for name in PRESETS if make_spec(name).deals_all_decks}
    assert all_decks == {"laptop", "marshal-mini", "mini", "hle-very-small"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_players": 7}, "num_players=7: Hanabi needs 2 to 5 players."),
        (
            {"num_players": True},
            "num_players=True: Hanabi needs 2 to 5 players; give a whole number.",
        ),
        ({"num_colors": 6}, "num_colors=6: a board has 1 to 5 colours."),
        ({"num_ranks": "5"}, "num_ranks='5': a board has 1 to 5 ranks; give a whole number."),
        ({"hand_size": 9}, "hand_size=9: a hand holds 1 to 8 cards."),
        ({"max_lives": 0}, "max_lives=0: a board has 1 to 100 lives."),
        ({"max_hints": -1}, "max_hints=-1: a board has 0 to 100 hint tokens."),
        (
            {"num_colors": 2, "num_ranks": 2},
            "hand_size=5: 2 players need 10 cards, but the 2x2 deck has 8; pass hand_size=4 or "
            "less.",
        ),
        (
            {"num_players": 5, "num_colors": 1, "num_ranks": 2, "hand_size": 1},
            "hand_size=1: 5 players need 5 cards, but the 1x2 deck has 4; use fewer players, or "
            "more colours or ranks.",
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
def test_an_unknown_preset_gets_a_hint(preset: object, hint: str) -> None:
    with pytest.raises(GameParameterError, match=re.escape(hint)):
        make_spec(preset)


def test_a_preset_for_other_players_is_refused_with_the_boards_for_them() -> None:
    boards = (
        "players=3: preset 'laptop' is for 2 players; boards for 3: mini, simple, small, full, "
        "or this one with another hand size (HANABI_HAND_SIZE)."
    )
    with pytest.raises(GameParameterError, match=f"^{re.escape(boards)}$"):
        make_spec("laptop", 3)


def test_a_changed_board_is_named_by_all_its_parameters_and_the_name_gives_the_board_again() -> (
    None
):
    board = make_spec("full", 3, num_colors=4, num_ranks=3, hand_size=4)
    assert board == GameSpec(
        preset="4x3-hand4-info8-life3",
        num_players=3,
        num_colors=4,
        num_ranks=3,
        hand_size=4,
        max_hints=8,
        max_lives=3,
    )
    assert make_spec(board.preset, 3) == board
    assert recorded_spec(board.preset, 3, board.hash) == board
    assert recorded_spec(board.preset, 3, make_spec("mini", 3).hash) is None


def test_parameters_of_the_presets_own_change_nothing_not_even_the_name() -> None:
    assert make_spec("laptop", 2, num_colors=2, max_lives=1) == make_spec("laptop")


def test_a_preset_with_another_hand_may_have_other_players() -> None:
    assert make_spec("marshal-mini", 3, hand_size=2).hash == make_spec("mini", 3).hash
    # The hand of the official rules, where only the deck is given.
    assert make_spec("hle-small", 4, num_colors=5, num_ranks=5).hand_size == 4


def test_the_best_known_score_belongs_to_the_rules_whatever_the_board_is_called() -> None:
    changed = make_spec("full", num_colors=2, num_ranks=2, hand_size=3, max_hints=3, max_lives=1)
    assert attainable(changed) == attainable(make_spec("laptop")) is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("6x3-hand4-info8-life3", "num_colors=6: a board has 1 to 5 colours."),
        ("4x3-hand9-info8-life3", "hand_size=9: a hand holds 1 to 8 cards."),
        ("4x3-hand4-info8-life0", "max_lives=0: a board has 1 to 100 lives."),
        ("4x3-hand4-info8", "no such board"),
        ("1x2-hand4-info8-life3", "2 players need 8 cards, but the 1x2 deck has 4"),
    ],
)
def test_an_impossible_board_by_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(GameParameterError, match=re.escape(message)):
        make_spec(name)


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
        game.apply(game.legal_actions()[seed % len(game.legal_actions())])
    assert game.score_kept <= spec.reachable_max
    assert len(game.events) <= spec.max_turns
