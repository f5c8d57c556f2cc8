"""Means over tasks, their errors and differences: of a lineup, and of a cross-play's matrix."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.statistics import Matrix, jackknife_error
from hanabi_grpo.runs.task_statistics import difference, estimate, estimate_of_all_starts

HIGHEST_SCORE = 25


def test_the_clustered_error_of_a_small_example_is_the_one_worked_out_by_hand() -> None:
    """Mean 2; deviations per start: (−1−2) = −3, (0+1) = 1, 2; 3/2 · (9+1+4) = 21; √21 / 5."""
    mean = estimate((1.0, 0.0, 2.0, 3.0, 4.0), (0, 0, 1, 1, 2))
    assert mean.mean == pytest.approx(2.0)
    assert mean.standard_error == pytest.approx(math.sqrt(21) / 5)
    assert mean.num_tasks == 5
    assert mean.num_starts == 3


def test_where_all_starts_are_played_only_the_luck_within_a_start_is_an_error() -> None:
    """Variances 2 and 0.5 of two tasks each: sqrt((2 + 0.5) / 2) / 2."""
    mean = estimate_of_all_starts((1.0, 10.0, 3.0, 11.0), (4, 9, 4, 9))
    assert mean.mean == pytest.approx(6.25)
    assert mean.standard_error == pytest.approx(math.sqrt(1.25) / 2)
    assert mean.high - mean.mean == pytest.approx(1.959964 * mean.standard_error)
    assert not mean.is_exact
    assert mean.to_json()["covers_all_starts"]
    certain = estimate_of_all_starts((1.0, 10.0, 1.0, 10.0), (4, 9, 4, 9))
    assert certain.is_exact
    assert (certain.mean, certain.standard_error) == (5.5, 0.0)
    assert (certain.low, certain.high) == (5.5, 5.5)
    assert not estimate((1.0, 1.0), (0, 1)).is_exact
    # Sampled games may agree by chance.
    agreed = estimate_of_all_starts((1.0, 10.0, 1.0, 10.0), (4, 9, 4, 9), is_sampled=True)
    assert agreed.standard_error == 0
    assert not agreed.is_exact
    change = difference((0, 0, 0, 0), (1, 10, 3, 11), (4, 9, 4, 9), covers_all_starts=True)
    assert change == mean


@pytest.mark.parametrize("starts", [(0, 1, 2), (0, 0, 1), (0, 0, 1, 1, 1)])
def test_starts_that_were_not_played_equally_often_or_once_are_refused(
    starts: tuple[int, ...],
) -> None:
    with pytest.raises(SettingsError, match="evaluate again with --all-starts"):
        estimate_of_all_starts([1.0] * len(starts), starts)


def test_where_all_starts_differ_the_error_is_the_usual_one() -> None:
    values = (2.0, 3.0, 0.0, 1.0, 4.0)
    mean = estimate(values, (0, 1, 2, 3, 4))
    assert mean.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5))


def test_the_interval_is_that_of_resampled_starts() -> None:
    """Two starts, 0 and 1: a resampled mean is 0, 0.5 or 1, each end with probability 1/4."""
    even = estimate((0.0, 1.0), (7, 9))
    assert even.low == 0.0
    assert even.high == 1.0
    uneven = estimate((0.0, 0.0, 0.0, 3.0), (0, 0, 0, 1))
    assert uneven.low == 0.0
    assert uneven.high == 3.0


def test_a_difference_is_paired_by_task() -> None:
    rise = difference((1, 3, 0), (2, 3, 2), (0, 1, 2))
    assert rise.mean == pytest.approx(1.0)
    assert rise.standard_error == pytest.approx(1 / math.sqrt(3))
    assert rise.sigmas == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("after", [(1.0, 1.0), (2.0, 2.0), (0.0, 0.0)])
def test_equal_differences_have_no_error_to_compare_with(after: tuple[float, ...]) -> None:
    change = difference((1.0, 1.0), after, (0, 1))
    assert change.standard_error == 0
    assert not change.has_variation
    assert math.isnan(change.sigmas)
    assert change.low == change.mean
    assert change.high == change.mean


def test_a_rounding_error_is_no_variation() -> None:
    values = (0.1,) * 1000
    mean = estimate(values, tuple(range(1000)))
    assert 0 <= mean.standard_error < 1e-12
    assert math.isnan(mean.sigmas)


def test_an_interval_is_cut_to_the_range_of_scores_but_keeps_the_mean() -> None:
    mean = estimate_of_all_starts((4.0, 4.0, 2.0, 4.0), (0, 1, 0, 1))
    assert mean.high > 4
    inside = mean.within(0.0, 4.0)
    assert (inside.low, inside.mean, inside.high) == (mean.low, mean.mean, 4.0)
    # Penalties may lie below the range.
    below = mean.within(3.75, 4.0)
    assert (below.low, below.mean) == (3.5, 3.5)


@pytest.mark.parametrize(
    ("values", "starts", "message"),
    [
        ((), (), r"0 task\(s\) with 0 start\(s\)"),
        ((1.0,), (0,), r"1 task\(s\) with 1 start\(s\)"),
        ((1.0, 2.0, 3.0), (5, 5, 5), r"3 task\(s\) with 1 start\(s\)"),
    ],
)
def test_too_few_starts_are_refused(
    values: tuple[float, ...], starts: tuple[int, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        estimate(values, starts)


def matrix(scores: object) -> Matrix:
    """Return a matrix on tasks of different starts."""
    array = np.asarray(scores, dtype=np.float64)
    return Matrix(scores=array, starts=np.arange(array.shape[2]))


def random_scores(num_entries: int, num_tasks: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    shape = (num_entries, num_entries, num_tasks)
    return generator.integers(0, HIGHEST_SCORE + 1, size=shape).astype(np.float64)


HAND_MADE = matrix(
    [
        [[4, 4], [1, 3], [0, 2]],
        [[2, 0], [5, 3], [4, 4]],
        [[3, 3], [2, 4], [2, 2]],
    ]
)


def test_the_whole_matrix_by_hand() -> None:
    figures = HAND_MADE.whole()
    # Per task: diagonal (4+5+2)/3 and (4+3+2)/3; off it (1+0+2+4+3+2)/6 and (3+2+0+4+3+4)/6.
    assert figures["self_play"].mean == pytest.approx(10 / 3)
    assert figures["cross_play"].mean == pytest.approx(7 / 3)
    gap = figures["gap"]
    assert gap.mean == pytest.approx(1.0)
    # Gaps of the two tasks: 11/3 - 2 and 3 - 8/3; half their distance is the error of their mean.
    assert gap.error_tasks == pytest.approx((5 / 3 - 1 / 3) / 2)
    # Left out: entry 0: (4+2)/2 - (4+3)/2; entry 1: (4+2)/2 - (1+3)/2; entry 2: (4+4)/2 - (2+1)/2.
    assert gap.error_entries == pytest.approx((2 / 3 * (1.5**2 + 0 + 1.5**2)) ** 0.5)
    assert gap.error_entries == pytest.approx(jackknife_error([-0.5, 1.0, 2.5]))


def test_each_entry_by_hand() -> None:
    zero, one, two = (HAND_MADE.entry(number) for number in range(3))
    assert zero.self_play == (4.0, 0.0)
    assert zero.first_seat.mean == pytest.approx((2 + 1) / 2)
    assert zero.other_seats.mean == pytest.approx((1 + 3) / 2)
    assert zero.gap.mean == pytest.approx(2.25)
    # Over both seats: 0 and 1 (2 + 1) / 2, 0 and 2 (1 + 3) / 2, 1 and 2 (4 + 3) / 2.
    worst = [(entry.worst_partner, entry.worst.mean) for entry in (zero, one, two)]
    assert worst == [(1, 1.5), (0, 1.5), (0, 2.0)]
    # Opponents are met in seat 0: there the other seats are the same games.
    opponents = replace(HAND_MADE, is_team=False)
    worst = [(entry.worst_partner, entry.worst.mean) for entry in map(opponents.entry, range(3))]
    assert worst == [(2, 1.0), (0, 1.0), (0, 3.0)]
    # Cross-play: 1.75, (1+4+2+3)/4, (3+3+1+4)/4.
    assert zero.cross_play.mean == pytest.approx(1.75)
    assert one.cross_play.mean == pytest.approx(2.5)
    assert two.cross_play.mean == pytest.approx(2.75)


@given(st.integers(2, 6), st.integers(0, 99))
def test_luck_that_all_pairs_share_is_in_no_difference(num_entries: int, seed: int) -> None:
    num_tasks = 12
    scores = random_scores(num_entries, num_tasks, seed)
    luck = np.random.default_rng(seed + 1000).normal(0, 10, size=num_tasks)
    calm = matrix(scores)
    lucky = matrix(scores + luck)
    calm_gap = calm.whole()["gap"]
    lucky_gap = lucky.whole()["gap"]
    assert lucky_gap.error_tasks == pytest.approx(calm_gap.error_tasks)
    assert lucky_gap.error_entries == pytest.approx(calm_gap.error_entries, nan_ok=True)
    for entry in range(num_entries):
        assert lucky.entry(entry).gap == pytest.approx(calm.entry(entry).gap)


def test_a_missing_cell_spoils_what_needs_it_and_nothing_else() -> None:
    scores = random_scores(4, 6, 2)
    scores[1, 2] = math.nan
    whole = matrix(scores).whole()
    entries = [matrix(scores).entry(number) for number in range(4)]
    assert math.isfinite(whole["self_play"].error_entries)
    for name in ("cross_play", "gap"):
        assert all(math.isnan(value) for value in whole[name])
    assert [math.isfinite(entry.gap.mean) for entry in entries] == [True, False, False, True]
    assert [entry.worst_partner is None for entry in entries] == [False, True, True, False]
    assert math.isfinite(entries[1].other_seats.mean)
    assert math.isnan(entries[1].first_seat.mean)
