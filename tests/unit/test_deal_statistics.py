import math
import statistics

import numpy as np
import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.deal_statistics import difference, estimate


def test_the_clustered_error_of_a_small_example_is_the_one_worked_out_by_hand() -> None:
    """Mean 2; sums of deviations per start: (−1−2) = −3, (0+1) = 1, 2; 3/2 · (9+1+4) = 21; √21 / 5."""
    found = estimate((1.0, 0.0, 2.0, 3.0, 4.0), (0, 0, 1, 1, 2))
    assert found.mean == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(math.sqrt(21) / 5)
    assert (found.num_deals, found.num_starts) == (5, 3)
    values = (2.0, 3.0, 0.0, 1.0, 4.0)
    alone = estimate(values, (0, 1, 2, 3, 4))
    assert alone.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5)), "the usual one"


def test_the_interval_is_that_of_resampled_starts() -> None:
    """Two starts, 0 and 1: a resampled mean is 0, 0.5 or 1, each end with probability 1/4."""
    found = estimate((0.0, 1.0), (7, 9))
    assert (found.low, found.high) == (0.0, 1.0)
    uneven = estimate((0.0, 0.0, 0.0, 3.0), (0, 0, 0, 1))
    assert (uneven.low, uneven.high) == (0.0, 3.0)


def test_intervals_cover_the_truth_as_often_as_they_say_and_unclustered_errors_do_not() -> None:
    """400 simulated evaluations of 300 deals on 60 starts, which decide most of the score; the truth is 0."""
    rng = np.random.default_rng(11)
    covered = {"error": 0, "interval": 0, "unclustered": 0}
    for _ in range(400):
        starts = rng.integers(60, size=300)
        values = (rng.normal(size=60)[starts] + 0.5 * rng.normal(size=300)).tolist()
        found = estimate(tuple(values), tuple(starts.tolist()))
        covered["error"] += abs(found.mean) <= 2.0 * found.standard_error
        covered["interval"] += found.low <= 0 <= found.high
        covered["unclustered"] += abs(found.mean) <= 1.96 * statistics.stdev(values) / math.sqrt(300)
    shares = {name: count / 400 for name, count in covered.items()}
    assert 0.91 <= shares["error"] <= 0.98
    assert 0.90 <= shares["interval"] <= 0.98
    assert shares["unclustered"] < 0.75, "the simulation would not notice a lost clustering"


def test_a_difference_is_taken_deal_by_deal() -> None:
    found = difference((1, 3, 0), (2, 3, 2), (0, 1, 2))
    assert found.mean == pytest.approx(1.0)
    assert found.standard_error == pytest.approx(1 / math.sqrt(3))
    assert found.sigmas == pytest.approx(math.sqrt(3))


def test_equal_differences_have_no_error_and_too_few_deals_are_refused() -> None:
    for after, sigmas in (((1.0, 1.0), 0.0), ((2.0, 2.0), math.inf), ((0.0, 0.0), -math.inf)):
        found = difference((1.0, 1.0), after, (0, 1))
        assert (found.standard_error, found.sigmas, found.low, found.high) == (0, sigmas, found.mean, found.mean)
    for values, starts, message in (
        ((), (), r"0 deal\(s\) with 0 start\(s\)"),
        ((1.0,), (0,), r"1 deal\(s\) with 1 start\(s\)"),
        ((1.0, 2.0, 3.0), (5, 5, 5), r"3 deal\(s\) with 1 start\(s\)"),
        ((1.0, 2.0), (0,), "2 values for 1 deals"),
    ):
        with pytest.raises(SettingsError, match=message):
            estimate(values, starts)
