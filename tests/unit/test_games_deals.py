"""Deals stay what they are, and suites hold what they promise."""

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest

from hanabi_grpo.envs.hanabi.rules import Card, GameSpec, is_held_out, make_spec, recorded_spec, shuffled_deck
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
    ("marshal-simple", "train-warm-start", 9223372036854775807): "R1 G1 Y1 Y1 Y2 R1 Y1 R1 R2 G2 G1 G1",
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


def test_streams_of_a_side_differ() -> None:
    for first, second in itertools.combinations(["train", "train-warm-start", "eval", "eval-2"], 2):
        decks = {shuffled_deck(FULL, first, seed) for seed in range(50)}
        assert decks.isdisjoint(shuffled_deck(FULL, second, seed) for seed in range(50))


def test_every_suite_of_a_board_with_few_decks_deals_all_of_them_equally_often() -> None:
    num_deals = 20_000
    for suite in ("train", "train-warm-start", "eval", "test"):
        counts = Counter(shuffled_deck(LAPTOP, suite, seed) for seed in range(num_deals))
        assert len(counts) == LAPTOP.num_decks == 1120
        chi_square = sum((count - num_deals / 1120) ** 2 for count in counts.values()) / (num_deals / 1120)
        # 1119 degrees of freedom: mean 1119, standard deviation 47.
        assert abs(chi_square - 1119) < 5 * 47


@pytest.mark.parametrize("spec", [LAPTOP, SIMPLE], ids=["laptop", "marshal-simple"])
def test_the_suites_of_the_split_share_no_deck(spec: GameSpec) -> None:
    training = {shuffled_deck(spec, suite, seed) for suite in ("split-train", "split-train-2") for seed in range(4000)}
    held_out = {shuffled_deck(spec, suite, seed) for suite in ("split-eval", "split-test") for seed in range(4000)}
    assert training.isdisjoint(held_out)
    if spec is LAPTOP:
        assert (len(training), len(held_out)) == (574, 546)  # every deck of the board is on one side


def test_held_out_suites_of_a_board_with_many_decks_share_no_deck_with_training() -> None:
    # Half of these decks are held out, so a deal that ignored the side would be found among the first few.
    sides = {suite: [_side(shuffled_deck(SIMPLE, suite, seed)) for seed in range(200)] for suite in ("train", "eval")}
    assert set(sides["train"]) == {0}
    assert set(sides["eval"]) == {1}


def _side(deck: tuple[Card, ...]) -> int:
    identities = bytes(card.color * SIMPLE.num_ranks + card.rank for card in deck)
    return hashlib.sha256(b"hanabi side v1|3x2|" + identities).digest()[0] & 1


def test_a_record_of_version_0_1_names_the_deck_that_was_dealt_then() -> None:
    old = recorded_spec("laptop", 2, "2beb8aa616bb")
    assert old is not None
    assert _text(shuffled_deck(old, "train", 0)) == "R1 Y1 R1 R1 R2 Y1 Y1 Y2"
    assert recorded_spec("laptop", 2, "6d2c920b5b32") == LAPTOP
    assert recorded_spec("laptop", 2, "000000000000") is None


def test_the_name_of_a_suite_says_whether_it_is_held_out() -> None:
    assert not any(map(is_held_out, ("train", "warm-start", "split-train")))
    assert all(map(is_held_out, ("eval", "eval-final", "test", "split-eval", "split-test-2")))


@pytest.mark.parametrize("suite", ["train", "eval"])
def test_every_card_is_equally_likely_in_every_position(suite: str) -> None:
    num_deals = 3000
    counts = np.zeros((FULL.deck_size, 25))
    for seed in range(num_deals):
        for position, card in enumerate(shuffled_deck(FULL, suite, seed)):
            counts[position, card.color * 5 + card.rank] += 1
    share = np.array([[count / 50 for count in (3, 2, 2, 2, 1)] * 5])
    z = (counts - num_deals * share) / np.sqrt(num_deals * share * (1 - share))
    # 1250 cells of unit variance: a shuffle that favours one cell by 2 % of the deals would stand out.
    assert np.abs(z).max() < 5
    assert 0.9 < (z**2).mean() < 1.1


def test_what_is_no_seed_or_no_suite_is_refused() -> None:
    for seed in (-1, 2**63, 1.0, "1", None, True):
        with pytest.raises(
            GameParameterError, match=r"^seed=.*: a deal's seed is a whole number from 0 to 2\*\*63 - 1"
        ):
            shuffled_deck(LAPTOP, "train", seed)
    for suite in ("", "a|b", "train ", "-x", "x" * 65, "é", None, 3):
        with pytest.raises(GameParameterError, match=r"a suite is 1 to 64 letters"):
            shuffled_deck(LAPTOP, suite, 0)
