"""Ratings of cross-play: opponents by Bradley and Terry, partners by row and column, methods."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crossplay_parts import plan_of, play, summary_of
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.evaluation.crossplay import ratings as ratings_module
from hanabi_grpo.evaluation.crossplay.ratings import rate_partners, rate_players
from hanabi_grpo.evaluation.crossplay.statistics import Matrix
from hanabi_grpo.evaluation.crossplay.summary import (
    Summary,
    all_sheets,
    summarise,
    summary_json,
)
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from toy_kuhn import KUHN

ROLES = ("first", "second")
STARTS = tuple(range(200))


@pytest.fixture(scope="module")
def kuhn(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    plan = plan_of("random", "equilibrium-0", tasks=60, setup=Setup(KUHN, KUHN.presets["kuhn"]))
    return summarise(plan, play(plan, tmp_path_factory.mktemp("kuhn")))


def cell(
    example: EvaluationResult, first: float, second: float, draws: float = 0.0
) -> EvaluationResult:
    """Return a cell whose row wins these shares of 200 games as first and as second."""
    outcomes = {}
    for role, wins in zip(ROLES, (first, second), strict=True):
        num_wins = round(200 * wins)
        num_draws = round(200 * draws)
        signs = [1] * num_wins + [0] * num_draws + [-1] * (200 - num_wins - num_draws)
        outcomes[role] = tuple(signs)
    return replace(example, outcomes=outcomes, seeds=STARTS, starts=STARTS)


def cells_of(
    summary: Summary, shares: Mapping[str, tuple[float, float]]
) -> dict[str, EvaluationResult]:
    example = next(iter(summary.cells.values()))
    return {name: cell(example, *wins) for name, wins in shares.items()}


def test_odds_of_three_to_one_are_191_points_and_seats_are_told_apart(kuhn: Summary) -> None:
    two_cells = cells_of(kuhn, {"0-1": (0.75, 0.75), "1-0": (0.25, 0.25)})
    ratings = rate_players(two_cells, 2, ROLES, STARTS)
    assert ratings is not None
    better, worse = ratings.entries
    # 400 log10(3) = 190.8, a little less by the drawn game against a player of rating 0.
    assert better.mean - worse.mean == pytest.approx(190.8, abs=1.5)
    assert better.mean == pytest.approx(-worse.mean)
    assert better.low < better.mean < better.high
    assert ratings.seat_effect.mean == pytest.approx(0.0, abs=1e-6)
    # The two cells are one set of games, in which the one loses what the other wins.
    assert ratings.num_games == 400
    # Whoever is first wins three of four games: equal players.
    two_cells = cells_of(kuhn, {"0-1": (0.75, 0.25), "1-0": (0.75, 0.25)})
    ratings = rate_players(two_cells, 2, ROLES, STARTS)
    assert ratings is not None
    assert [entry.mean for entry in ratings.entries] == pytest.approx([0.0, 0.0], abs=1e-6)
    # Odds of three to one for the first against an equal.
    assert ratings.seat_effect.mean == pytest.approx(190.8, abs=1.5)


def test_the_two_cells_of_a_pair_are_the_same_games_and_count_once(kuhn: Summary) -> None:
    one_cell = {"0-1": kuhn.cells["0-1"]}
    assert [-score for score in kuhn.cells["1-0"].scores] == list(kuhn.cells["0-1"].scores)
    starts = range(60)
    ratings = rate_players(kuhn.cells, 2, ROLES, starts)
    assert ratings is not None
    # Twice as many games would make the intervals narrower by a factor of 1.41.
    assert ratings == rate_players(one_cell, 2, ROLES, starts)
    assert ratings == rate_players({"1-0": kuhn.cells["1-0"]}, 2, ROLES, starts)
    assert ratings.num_games == 120


def test_who_has_won_every_game_is_not_certain_to_win_the_next_one(kuhn: Summary) -> None:
    example = next(iter(kuhn.cells.values()))
    ratings = rate_players({"0-1": cell(example, 1.0, 1.0)}, 2, ROLES, STARTS)
    assert ratings is not None
    winner = ratings.entries[0]
    assert winner.low < winner.mean - 50
    # Who is first wins every game: the odds are those of 400 wins and a draw, 801 to 1.
    ratings = rate_players({"0-1": cell(example, 1.0, 0.0)}, 2, ROLES, STARTS)
    assert ratings is not None
    assert ratings.seat_effect.mean == pytest.approx(400 * math.log10(801), abs=1)
    assert ratings.seat_effect.low < ratings.seat_effect.mean - 50


def test_who_has_drawn_every_game_may_still_win_or_lose_the_next_one(kuhn: Summary) -> None:
    example = next(iter(kuhn.cells.values()))
    drawn = cell(example, 0.0, 0.0, draws=1.0)
    ratings = rate_players({"0-1": drawn}, 2, ROLES, STARTS)
    assert ratings is not None
    for rating in (*ratings.entries, ratings.seat_effect):
        assert rating.mean == pytest.approx(0.0, abs=1e-6)
        assert -5 < rating.low < -0.1
        assert 0.1 < rating.high < 5
    # The same games again are the same interval.
    assert rate_players({"0-1": drawn}, 2, ROLES, STARTS) == ratings


def lucky_cells(example: EvaluationResult, starts: Sequence[int]) -> dict[str, EvaluationResult]:
    """Return the cells of three equal entries, in which the deal mostly decides for a seat.

    Whether the first or the second player wins is the same for most pairs and both seats, and
    mostly the same for the tasks of a start.
    """
    rng = random.Random(11)
    num_tasks = len(starts)
    luck = {start: rng.choice((1, -1)) for start in starts}
    cells = {}
    for name in ("0-1", "0-2", "1-2"):
        outcomes = {}
        for role, sign in zip(ROLES, (1, -1), strict=True):
            signs = []
            for task in range(num_tasks):
                is_usual = rng.random() < 0.8
                signs.append(sign * luck[starts[task]] * (1 if is_usual else -1))
            outcomes[role] = tuple(signs)
        cells[name] = replace(
            example, outcomes=outcomes, seeds=tuple(range(num_tasks)), starts=tuple(starts)
        )
    return cells


@pytest.mark.parametrize("tasks_per_start", [1, 3])
def test_intervals_resample_starts_with_all_pairs_and_both_seats(
    kuhn: Summary, monkeypatch: pytest.MonkeyPatch, tasks_per_start: int
) -> None:
    """All pairs play the same deals from both seats: their luck is one observation, not six."""
    starts = [task // tasks_per_start for task in range(60 * tasks_per_start)]
    example = next(iter(kuhn.cells.values()))
    cells = lucky_cells(example, starts)
    ratings = rate_players(cells, 3, ROLES, starts)
    assert ratings is not None
    # Each sample is a cross-play of its own, of 60 of the 60 starts and one whose games are draws.
    rng = random.Random(4)
    monkeypatch.setattr(ratings_module, "RESAMPLES", 1)
    seat_effects = []
    first_entries = []
    for _ in range(400):
        drawn_tasks: list[int | None] = []
        for start in rng.choices(range(61), k=60):
            for place in range(tasks_per_start):
                drawn_tasks.append(None if start == 60 else start * tasks_per_start + place)
        sample = {}
        for name, cell_of_all in cells.items():
            outcomes = {}
            for role in ROLES:
                signs = cell_of_all.outcomes[role]
                drawn_signs = [0 if task is None else signs[task] for task in drawn_tasks]
                outcomes[role] = tuple(drawn_signs)
            sample[name] = replace(cell_of_all, outcomes=outcomes)
        fitted = rate_players(sample, 3, ROLES, range(len(drawn_tasks)))
        assert fitted is not None
        seat_effects.append(fitted.seat_effect.mean)
        first_entries.append(fitted.entries[0].mean)
    for rating, values in (
        (ratings.seat_effect, seat_effects),
        (ratings.entries[0], first_entries),
    ):
        low, high = np.quantile(values, (0.025, 0.975))
        width = high - low
        assert rating.low == pytest.approx(low, abs=0.15 * width)
        assert rating.high == pytest.approx(high, abs=0.15 * width)


def test_the_seat_effect_of_lucky_deals_is_as_uncertain_as_their_number(kuhn: Summary) -> None:
    """60 deals that decide all six games: log odds with an error of sqrt(1/w + 1/(60 - w))."""
    example = next(iter(kuhn.cells.values()))
    luck = [1] * 36 + [-1] * 24
    outcomes = {"first": tuple(luck), "second": tuple(-sign for sign in luck)}
    cells = {}
    for name in ("0-1", "0-2", "1-2"):
        cells[name] = replace(
            example, outcomes=outcomes, seeds=tuple(range(60)), starts=tuple(range(60))
        )
    ratings = rate_players(cells, 3, ROLES, range(60))
    assert ratings is not None
    effect = ratings.seat_effect
    assert effect.mean == pytest.approx(400 * math.log10(1.5), abs=1)
    error = 400 / math.log(10) * math.sqrt(1 / 36 + 1 / 24)
    assert effect.high - effect.low == pytest.approx(2 * 1.96 * error, rel=0.12)
    # What wins as first loses as second, in every task: the entries are exactly equal.
    for entry in ratings.entries:
        assert (entry.low, entry.high) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_an_entry_that_wins_every_game_has_a_rating_and_draws_are_half_wins(kuhn: Summary) -> None:
    shares = {"0-1": (1.0, 1.0), "1-2": (0.75, 0.75), "0-2": (1.0, 1.0)}
    ratings = rate_players(cells_of(kuhn, shares), 3, ROLES, STARTS)
    assert ratings is not None
    best, middle, last = (entry.mean for entry in ratings.entries)
    assert math.isfinite(best) and best > middle > last
    assert middle - last == pytest.approx(190.8, abs=3)
    assert best + middle + last == pytest.approx(0.0, abs=1e-6)
    example = next(iter(kuhn.cells.values()))
    drawn = rate_players({"0-1": cell(example, 0.5, 0.5, draws=0.5)}, 2, ROLES, STARTS)
    won = rate_players({"0-1": cell(example, 0.75, 0.75)}, 2, ROLES, STARTS)
    assert drawn is not None and won is not None
    assert drawn.entries[0].mean == pytest.approx(won.entries[0].mean)
    assert rate_players({}, 2, ROLES, STARTS) is None


def test_a_zero_sum_cross_play_has_ratings_and_no_partners(kuhn: Summary) -> None:
    document = summary_json(kuhn)
    assert document["partners"] is None and document["methods"] == []
    ratings = document["opponents"]
    assert ratings["num_games"] == 2 * 60
    assert {entry["label"] for entry in ratings["entries"]} == {"random", "equilibrium-0"}
    [sheet] = [sheet for sheet in all_sheets(kuhn) if sheet.title == "Ratings"]
    means = {row[0]: float(row[1]) for group in sheet.groups for row in group}
    assert sum(means.values()) == pytest.approx(0, abs=1)
    assert "Playing as first is worth" in sheet.note


def matrix_of(means: NDArray[np.float64], noise: NDArray[np.float64] | None = None) -> Matrix:
    scores = np.repeat(means[:, :, None], 4, axis=2)
    if noise is not None:
        scores = scores + noise
    return Matrix(scores=scores, starts=np.arange(4))


def test_row_and_column_effects_of_an_additive_matrix_are_found_and_self_play_is_apart() -> None:
    rows = np.array([0.5, 0.0, -0.2, -0.3])
    columns = np.array([0.1, 0.3, -0.4, 0.0])
    means = 2 + rows[:, None] + columns[None, :]
    # The diagonal takes no part: everybody understands itself better by a point.
    means[np.eye(4, dtype=bool)] += 1.0
    ratings = rate_partners(matrix_of(means))
    assert ratings is not None
    assert [entry.rating.mean for entry in ratings.entries] == pytest.approx(rows + columns)
    assert [entry.row.mean for entry in ratings.entries] == pytest.approx(rows)
    assert [entry.column.mean for entry in ratings.entries] == pytest.approx(columns)
    assert [entry.own_convention.mean for entry in ratings.entries] == pytest.approx([1.0] * 4)
    assert ratings.explained == pytest.approx(1.0)
    # Nothing to disagree about: with any partner left out the differences are the same.
    differences = [entry.rating.error for entry in ratings.entries]
    assert differences == pytest.approx([0.0] * 4, abs=1e-12)


def test_a_strong_entry_is_not_judged_by_its_weaker_partners() -> None:
    # Additive: entry 0 adds 1, the others nothing. Means over others: 2.5 against 2 + 1/3.
    rows = np.array([1.0, 0.0, 0.0, 0.0])
    means = 2 + rows[:, None] / 2 + rows[None, :] / 2
    ratings = rate_partners(matrix_of(means))
    assert ratings is not None
    best, *others = (entry.rating.mean for entry in ratings.entries)
    assert best - others[0] == pytest.approx(1.0)
    by_mean = (means.sum(axis=1) - means.diagonal()) / 3
    assert by_mean[0] - by_mean[1] < 0.5


def test_partners_need_three_entries_all_cells_and_a_jackknife_four() -> None:
    assert rate_partners(matrix_of(np.ones((2, 2)))) is None
    missing = np.ones((4, 4))
    missing[0, 1] = math.nan
    assert rate_partners(matrix_of(missing)) is None
    rng = np.random.default_rng(1)
    three = rate_partners(matrix_of(rng.random((3, 3)), rng.normal(size=(3, 3, 4))))
    four = rate_partners(matrix_of(rng.random((4, 4)), rng.normal(size=(4, 4, 4))))
    assert three is not None and four is not None
    assert all(math.isnan(entry.error_partners) for entry in three.entries)
    assert all(entry.error_partners > 0 for entry in four.entries)
    assert all(entry.rating.error > 0 for entry in four.entries)


def test_seeds_of_a_method_have_their_own_gap_with_a_jackknife_over_seeds(tmp_path: Path) -> None:
    entries = ("a#0=iggi", "a#1=piers", "a#2=outer", "b#x=hint-bot", "b#y=focus-bot", "flawed")
    summary = summary_of(tmp_path, *entries, tasks=6)
    a, b = summary.methods
    assert (a.name, a.num_seeds, b.name, b.num_seeds) == ("a", 3, "b", 2)
    means = summary.matrix.means
    own = means[:3, :3]
    self_play = own.diagonal().mean()
    others = own[~np.eye(3, dtype=bool)].mean()
    assert a.whole["gap"].mean == pytest.approx(self_play - others)
    left_out = []
    for seed in range(3):
        kept = np.delete(np.arange(3), seed)
        rest = own[np.ix_(kept, kept)]
        left_out.append(rest.diagonal().mean() - (rest[0, 1] + rest[1, 0]) / 2)
    error = math.sqrt(2 / 3 * sum((value - np.mean(left_out)) ** 2 for value in left_out))
    assert a.whole["gap"].error_entries == pytest.approx(error)
    assert math.isnan(b.whole["gap"].error_entries), "two seeds have no jackknife"
    crossed = (means[:3, 3:5].mean() + means[3:5, :3].mean()) / 2
    assert a.with_others["b"].mean == pytest.approx(crossed)
    assert b.with_others["a"].mean == pytest.approx(crossed)
    document = summary_json(summary)
    assert [method["name"] for method in document["methods"]] == ["a", "b"]
    assert document["opponents"] is None
    assert len(document["partners"]["entries"]) == 6
    titles = [sheet.title for sheet in all_sheets(summary)]
    assert titles == [
        "Mean scores",
        "Self-play and cross-play",
        "Methods",
        "Ratings as partners",
        "Entries",
    ]
    # One entry with such a name is no method.
    assert summary_of(tmp_path / "one", "a#0=iggi", "b=outer", tasks=4).methods == ()
