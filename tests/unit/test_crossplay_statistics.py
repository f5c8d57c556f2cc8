import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hanabi_grpo.evaluation.crossplay.statistics import (
    Matrix,
    entry_figures,
    jackknife_error,
    matrix_figures,
    over_deals,
    worst_partners,
)
from hanabi_grpo.runs.deal_statistics import estimate


def matrix(scores: object, decks: object = None) -> Matrix:
    array = np.asarray(scores, dtype=np.float64)
    numbers = np.arange(array.shape[2]) if decks is None else np.asarray(decks)
    return Matrix(scores=array, decks=numbers)


def random_scores(count: int, deals: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).integers(0, 26, size=(count, count, deals)).astype(np.float64)


HAND_MADE = matrix(
    [
        [[4, 4], [1, 3], [0, 2]],
        [[2, 0], [5, 3], [4, 4]],
        [[3, 3], [2, 4], [2, 2]],
    ]
)


def test_the_whole_matrix_by_hand() -> None:
    figures = matrix_figures(HAND_MADE)
    # Per deal: diagonal (4+5+2)/3 and (4+3+2)/3; off it (1+0+2+4+3+2)/6 and (3+2+0+4+3+4)/6.
    assert figures.self_play.mean == pytest.approx(10 / 3)
    assert figures.cross_play.mean == pytest.approx(7 / 3)
    assert figures.gap.mean == pytest.approx(1.0)
    # Gaps of the two deals: 11/3 - 2 and 3 - 8/3; half their distance is the error of their mean.
    assert figures.gap.error_deals == pytest.approx((5 / 3 - 1 / 3) / 2)
    # Left out: entry 0: (4+2)/2 - (4+3)/2; entry 1: (4+2)/2 - (1+3)/2; entry 2: (4+4)/2 - (2+1)/2.
    left_out = [-0.5, 1.0, 2.5]
    assert figures.gap.error_entries == pytest.approx((2 / 3 * (1.5**2 + 0 + 1.5**2)) ** 0.5)
    assert figures.gap.error_entries == pytest.approx(jackknife_error(left_out))


def test_each_entry_by_hand() -> None:
    zero, one, two = entry_figures(HAND_MADE)
    assert zero.self_play == (4.0, 0.0)
    assert zero.first_seat.mean == pytest.approx((2 + 1) / 2)
    assert zero.other_seats.mean == pytest.approx((1 + 3) / 2)
    assert zero.cross_play.mean == pytest.approx(1.75)
    assert zero.gap.mean == pytest.approx(2.25)
    # Pairs with the two partners: (2+1)/2 and (1+3)/2.
    assert zero.gap_error_partners == pytest.approx(0.25)
    assert (zero.worst_partners, zero.worst.mean) == ((2,), 1.0)
    assert (one.worst_partners, one.worst.mean) == ((0,), 1.0)
    assert (two.worst_partners, two.worst.mean) == ((0,), 3.0), "of two equal partners the first"
    # Cross-play: 1.75, (1+4+2+3)/4, (3+3+1+4)/4.
    assert [entry.cross_play.mean for entry in (zero, one, two)] == pytest.approx([1.75, 2.5, 2.75])
    assert [entry.rank for entry in (zero, one, two)] == [3, 2, 1]
    assert [entry.behind_best.mean for entry in (zero, one, two)] == pytest.approx([1.0, 0.25, 0.0])
    assert two.behind_best == (0.0, 0.0)


@given(st.integers(2, 60), st.integers(0, 99), st.integers(2, 20))
def test_the_error_over_deals_is_the_one_of_the_evaluation(deals: int, seed: int, decks: int) -> None:
    rng = np.random.default_rng(seed)
    values, numbers = rng.normal(size=deals), rng.integers(decks, size=deals)
    numbers[:2] = 0, 1
    found = over_deals(values, numbers)
    wanted = estimate(tuple(values.tolist()), tuple(numbers.tolist()))
    assert found == pytest.approx((wanted.mean, wanted.standard_error))


def test_deals_of_one_deck_count_once() -> None:
    values = np.asarray([1.0, 5.0, 2.0])
    once = over_deals(values, np.arange(3))
    assert once.error == pytest.approx(values.std(ddof=1) / 3**0.5)
    assert over_deals(np.repeat(values, 4), np.repeat(np.arange(3), 4)) == pytest.approx(once)
    assert math.isnan(over_deals(values, np.zeros(3, dtype=np.int64)).error)


@given(st.integers(2, 6), st.integers(0, 99))
def test_luck_that_all_pairs_share_is_in_no_difference(count: int, seed: int) -> None:
    scores = random_scores(count, 12, seed)
    luck = np.random.default_rng(seed + 1000).normal(0, 10, size=12)
    calm, lucky = matrix(scores), matrix(scores + luck)
    assert matrix_figures(lucky).gap[1:] == pytest.approx(matrix_figures(calm).gap[1:], nan_ok=True)
    for before, after in zip(entry_figures(calm), entry_figures(lucky), strict=True):
        assert after.gap == pytest.approx(before.gap)
        assert after.behind_best == pytest.approx(before.behind_best, abs=1e-9)


def test_the_jackknife_covers_the_true_gap_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered, rounds, count = 0, 400, 12
    for _ in range(rounds):
        skill, own = rng.normal(size=count), rng.normal(1.0, 0.5, size=count)
        means = skill[:, None] + skill[None, :] + rng.normal(0, 0.5, size=(count, count)) + np.diag(own)
        gap = matrix_figures(matrix(np.repeat(means[:, :, None], 2, axis=2))).gap
        covered += abs(gap.mean - 1.0) < 2.2 * gap.error_entries  # t with 11 degrees of freedom
    assert 0.91 <= covered / rounds <= 0.99


@pytest.mark.parametrize(
    ("others", "expected"),
    [(1, 1), (7, 1), (10, 1), (11, 2), (20, 2), (21, 3)],
)
def test_the_worst_decile_is_rounded_up(others: int, expected: int) -> None:
    row = [0.0, *range(others, 0, -1)]
    found = worst_partners(row, 0)
    assert found == tuple(range(others, others - expected, -1))


def test_a_missing_cell_spoils_what_needs_it_and_nothing_else() -> None:
    scores = random_scores(4, 6, 2)
    scores[1, 2] = math.nan
    whole, entries = matrix_figures(matrix(scores)), entry_figures(matrix(scores))
    assert math.isfinite(whole.self_play.error_entries)
    assert all(math.isnan(value) for value in (*whole.cross_play, *whole.gap))
    assert [math.isfinite(entry.gap.mean) for entry in entries] == [True, False, False, True]
    assert [bool(entry.worst_partners) for entry in entries] == [True, False, True, True]
    assert math.isfinite(entries[1].other_seats.mean) and math.isnan(entries[1].first_seat.mean)
    assert {entry.rank for entry in entries} == {None}
