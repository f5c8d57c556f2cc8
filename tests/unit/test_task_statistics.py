"""Means over tasks, their errors and their differences: of one lineup, and of a cross-play's
matrix.
"""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.statistics import Matrix, jackknife_error
from hanabi_grpo.runs.task_statistics import difference, estimate


def test_the_clustered_error_of_a_small_example_is_the_one_worked_out_by_hand() -> None:
    """Mean 2; sums of deviations per start: (−1−2) = −3, (0+1) = 1, 2; 3/2 · (9+1+4) = 21; √21 /
    5.
    """
    found = estimate((1.0, 0.0, 2.0, 3.0, 4.0), (0, 0, 1, 1, 2))
    assert found.mean == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(math.sqrt(21) / 5)
    assert (found.num_tasks, found.num_starts) == (5, 3)
    values = (2.0, 3.0, 0.0, 1.0, 4.0)
    alone = estimate(values, (0, 1, 2, 3, 4))
    assert alone.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5)), (
        "the usual one"
    )


def test_the_interval_is_that_of_resampled_starts() -> None:
    """Two starts, 0 and 1: a resampled mean is 0, 0.5 or 1, each end with probability 1/4."""
    found = estimate((0.0, 1.0), (7, 9))
    assert (found.low, found.high) == (0.0, 1.0)
    uneven = estimate((0.0, 0.0, 0.0, 3.0), (0, 0, 0, 1))
    assert (uneven.low, uneven.high) == (0.0, 3.0)


def test_a_difference_is_taken_deal_by_deal() -> None:
    found = difference((1, 3, 0), (2, 3, 2), (0, 1, 2))
    assert found.mean == pytest.approx(1.0)
    assert found.standard_error == pytest.approx(1 / math.sqrt(3))
    assert found.sigmas == pytest.approx(math.sqrt(3))


def test_equal_differences_have_no_error_and_too_few_deals_are_refused() -> None:
    for after, sigmas in (((1.0, 1.0), 0.0), ((2.0, 2.0), math.inf), ((0.0, 0.0), -math.inf)):
        found = difference((1.0, 1.0), after, (0, 1))
        assert (found.standard_error, found.sigmas, found.low, found.high) == (
            0,
            sigmas,
            found.mean,
            found.mean,
        )
    for values, starts, message in (
        ((), (), r"0 task\(s\) with 0 start\(s\)"),
        ((1.0,), (0,), r"1 task\(s\) with 1 start\(s\)"),
        ((1.0, 2.0, 3.0), (5, 5, 5), r"3 task\(s\) with 1 start\(s\)"),
    ):
        with pytest.raises(SettingsError, match=message):
            estimate(values, starts)


def matrix(scores: object) -> Matrix:
    array = np.asarray(scores, dtype=np.float64)
    return Matrix(scores=array, starts=np.arange(array.shape[2]))


def random_scores(count: int, tasks: int, seed: int) -> NDArray[np.float64]:
    return (
        np.random.default_rng(seed).integers(0, 26, size=(count, count, tasks)).astype(np.float64)
    )


HAND_MADE = matrix([[[4, 4], [1, 3], [0, 2]], [[2, 0], [5, 3], [4, 4]], [[3, 3], [2, 4], [2, 2]]])


def test_the_whole_matrix_by_hand() -> None:
    figures = HAND_MADE.whole()
    # Per task: diagonal (4+5+2)/3 and (4+3+2)/3; off it (1+0+2+4+3+2)/6 and (3+2+0+4+3+4)/6.
    assert [figures[name].mean for name in ("self_play", "cross_play", "gap")] == pytest.approx(
        [10 / 3, 7 / 3, 1.0]
    )
    # Gaps of the two tasks: 11/3 - 2 and 3 - 8/3; half their distance is the error of their mean.
    assert figures["gap"].error_tasks == pytest.approx((5 / 3 - 1 / 3) / 2)
    # Left out: entry 0: (4+2)/2 - (4+3)/2; entry 1: (4+2)/2 - (1+3)/2; entry 2: (4+4)/2 - (2+1)/2.
    assert figures["gap"].error_entries == pytest.approx((2 / 3 * (1.5**2 + 0 + 1.5**2)) ** 0.5)
    assert figures["gap"].error_entries == pytest.approx(jackknife_error([-0.5, 1.0, 2.5]))


def test_each_entry_by_hand() -> None:
    zero, one, two = map(HAND_MADE.entry, range(3))
    assert zero.self_play == (4.0, 0.0)
    assert zero.first_seat.mean == pytest.approx((2 + 1) / 2)
    assert zero.other_seats.mean == pytest.approx((1 + 3) / 2)
    assert zero.gap.mean == pytest.approx(2.25)
    assert (zero.worst_partner, zero.worst.mean) == (2, 1.0)
    assert (one.worst_partner, one.worst.mean) == (0, 1.0)
    assert (two.worst_partner, two.worst.mean) == (0, 3.0), "of two equal partners the first"
    # Cross-play: 1.75, (1+4+2+3)/4, (3+3+1+4)/4.
    assert [entry.cross_play.mean for entry in (zero, one, two)] == pytest.approx([1.75, 2.5, 2.75])


@given(st.integers(2, 6), st.integers(0, 99))
def test_luck_that_all_pairs_share_is_in_no_difference(count: int, seed: int) -> None:
    scores = random_scores(count, 12, seed)
    luck = np.random.default_rng(seed + 1000).normal(0, 10, size=12)
    calm, lucky = matrix(scores), matrix(scores + luck)
    assert lucky.whole()["gap"][1:] == pytest.approx(calm.whole()["gap"][1:], nan_ok=True)
    for entry in range(count):
        assert lucky.entry(entry).gap == pytest.approx(calm.entry(entry).gap)


def test_a_missing_cell_spoils_what_needs_it_and_nothing_else() -> None:
    scores = random_scores(4, 6, 2)
    scores[1, 2] = math.nan
    whole, entries = matrix(scores).whole(), [matrix(scores).entry(number) for number in range(4)]
    assert math.isfinite(whole["self_play"].error_entries)
    assert all(math.isnan(value) for value in (*whole["cross_play"], *whole["gap"]))
    assert [math.isfinite(entry.gap.mean) for entry in entries] == [True, False, False, True]
    assert [entry.worst_partner is None for entry in entries] == [False, True, False, False]
    assert math.isfinite(entries[1].other_seats.mean) and math.isnan(entries[1].first_seat.mean)
