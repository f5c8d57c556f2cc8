import math
import statistics

import numpy as np
import pytest

from hanabi_grpo.envs.hanabi.rules import make_spec, shuffled_deck
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.deal_statistics import clustered_error, deck_numbers, difference, estimate


def test_with_different_decks_the_error_is_the_usual_one() -> None:
    values = (2.0, 3.0, 0.0, 1.0, 4.0)
    found = estimate(values, (0, 1, 2, 3, 4))
    assert found.mean == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5))
    assert (found.num_deals, found.num_decks) == (5, 5)


def test_the_clustered_error_of_a_small_example_is_the_one_worked_out_by_hand() -> None:
    """Mean 2; sums of deviations per deck: (−1−2) = −3, (0+1) = 1, 2; 3/2 · (9+1+4) = 21; √21 / 5."""
    found = estimate((1.0, 0.0, 2.0, 3.0, 4.0), (0, 0, 1, 1, 2))
    assert found.mean == pytest.approx(2.0)
    assert found.standard_error == pytest.approx(math.sqrt(21) / 5)
    assert (found.num_deals, found.num_decks) == (5, 3)


def test_the_interval_is_that_of_resampled_decks() -> None:
    """Two decks, 0 and 1: a resampled mean is 0, 0.5 or 1, each end with probability 1/4."""
    found = estimate((0.0, 1.0), (7, 9))
    assert (found.low, found.high) == (0.0, 1.0)
    uneven = estimate((0.0, 0.0, 0.0, 3.0), (0, 0, 0, 1))
    assert (uneven.low, uneven.high) == (0.0, 3.0)


def test_intervals_cover_the_truth_as_often_as_they_say_and_unclustered_errors_do_not() -> None:
    """400 simulated evaluations of 300 deals on 60 decks, whose scores hang on the deck; the truth is 0."""
    rng = np.random.default_rng(11)
    covered = {"error": 0, "interval": 0, "unclustered": 0}
    for _ in range(400):
        decks = rng.integers(60, size=300)
        values = (rng.normal(size=60)[decks] + 0.5 * rng.normal(size=300)).tolist()
        found = estimate(tuple(values), tuple(decks.tolist()))
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


@pytest.mark.parametrize(("after", "sigmas"), [((1.0, 1.0), 0.0), ((2.0, 2.0), math.inf), ((0.0, 0.0), -math.inf)])
def test_equal_differences_have_no_error(after: tuple[float, float], sigmas: float) -> None:
    found = difference((1.0, 1.0), after, (0, 1))
    assert found.standard_error == 0.0
    assert found.sigmas == sigmas
    assert found.low == found.high == found.mean


@pytest.mark.parametrize(
    ("values", "decks", "message"),
    [
        ((), (), r"0 deal\(s\) with 0 deck\(s\)"),
        ((1.0,), (0,), r"1 deal\(s\) with 1 deck\(s\)"),
        ((1.0, 2.0, 3.0), (5, 5, 5), r"3 deal\(s\) with 1 deck\(s\)"),
        ((1.0, 2.0), (0,), "2 values for 1 deals"),
    ],
)
def test_too_little_for_an_error_is_refused(values: tuple[float, ...], decks: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        estimate(values, decks)


def test_deals_of_one_deck_have_one_number_where_a_suite_is_half_of_the_decks() -> None:
    spec = make_spec("laptop")
    numbers = deck_numbers(spec, "split-eval", tuple(range(1000)))
    assert len(set(numbers)) == 451
    decks = [shuffled_deck(spec, "split-eval", seed) for seed in range(60)]
    for one in range(60):
        for other in range(one):
            assert (numbers[one] == numbers[other]) == (decks[one] == decks[other])
    assert len(set(deck_numbers(make_spec("full"), "eval", tuple(range(300))))) == 300


def test_deals_of_all_decks_of_a_board_are_independent() -> None:
    assert deck_numbers(make_spec("laptop"), "eval", (3, 5, 3000)) == (0, 1, 2)
    # The same deck may come twice; the mean over many deals still misses the mean over all decks by as much as it says.
    spec = make_spec("laptop")
    share = 3 / 8  # of decks whose first card is a red 1
    errors = []
    for sample in range(200):
        seeds = tuple(range(400 * sample, 400 * (sample + 1)))
        firsts = [float(str(shuffled_deck(spec, "eval", seed)[0]) == "R1") for seed in seeds]
        mean, error, _ = clustered_error(np.array(firsts), np.array(deck_numbers(spec, "eval", seeds)))
        errors.append((mean - share) / error)
    assert 0.85 < float(np.std(errors)) < 1.15
