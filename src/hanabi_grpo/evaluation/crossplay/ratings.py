"""Ratings of a cross-play's entries: as opponents, or as partners.

**Opponents.** Bradley and Terry, Rank Analysis of Incomplete Block Designs I, Biometrika 39, 1952,
with an effect of the seat: entry i in role r beats entry j with chance 1 / (1 + exp(-(t_i - t_j +
s_r))), the effects of the two roles being opposite. A draw is half a win. Each entry has one extra
drawn game against a player of rating 0, and the two roles have one between equals, so that the fit
exists even if an entry or a role wins every game. Ratings are on the Elo scale: 400 points are
odds of ten to one; their mean is 0. The cells [i, j] and [j, i] are the same tasks in the same
seats: one set of games, which counts once. All pairs play the same tasks from both seats, so
intervals resample tasks, those of one start together, with the games of all pairs and roles. They
are drawn with replacement from the starts plus one of average size whose games are all draws: an
entry that won every game may still lose the next. Where all games of a pair in a role were draws,
the games of that extra start are all won or all lost instead, by the toss of a coin: who drew every
game may still win or lose the next.

**Partners.** A team's score belongs to all of its players, so Elo cannot separate them. The scores
of pairs are decomposed instead, by least squares over the cells off the diagonal: S[i, j] = m + r_i
+ c_j, the row in the first seat, the column in all others. Row and column effects sum to 0. An
entry's rating as a partner is r_i + c_i, in points, as if it sat in both places. A plain mean over
the others is not enough: no entry is among its own partners, so the best one is judged with worse
partners than the rest. The model is linear in the scores, so a rating is a mean over tasks with the
usual error; a second error leaves out one other entry at a time (jackknife).
What the model does not explain is how well two entries understand each other beyond how good they
are as partners; for an entry with itself, this is the value of its convention.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.evaluation.crossplay.statistics import Estimate, Matrix, jackknife_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.task_statistics import COVERAGE

RESAMPLES = 500
"""Number of fits per interval."""
MIN_TEAMS = 3
"""Row and column effects of two entries are not determined by their two cells."""
_MIN_TEAMS_FOR_JACKKNIFE = 4
_POINTS = 400 / math.log(10)
"""Elo points of one unit of log odds."""
_POINTS_OF_DRAW = 0.5
_MAX_NEWTON_STEPS = 100
_TOLERANCE = 1e-10
_SEED = 20240229

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """An estimate with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerRatings:
    """Ratings of a game with a winner and a loser, in Elo points."""

    entries: tuple[Rating, ...]
    """By entry; they sum to 0."""
    first_role: str
    """The role that `seat_effect` is about."""
    seat_effect: Rating
    """Points that the first role is worth: with equal players, the log odds of its win."""
    num_games: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerRating:
    """An entry as a partner, in points of the score."""

    rating: Estimate
    """Row effect + column effect; error over tasks."""
    error_partners: float
    """Jackknife over the other entries; NaN with fewer than four entries."""
    row: Estimate
    """Effect in the first seat."""
    column: Estimate
    """Effect in the other seats."""
    own_convention: Estimate
    """Self-play score minus what the model predicts; NaN if self-play was not played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnerRatings:
    """Ratings of a team game."""

    entries: tuple[PartnerRating, ...]
    explained: float
    """Share of the variance of mean scores off the diagonal that the model explains; NaN if all
    are equal."""


# --- Players


def rate_players(
    cells: Mapping[str, EvaluationResult],
    num_entries: int,
    roles: Sequence[str],
    starts: Sequence[int],
) -> PlayerRatings | None:
    """Return the ratings of entries that play against each other; None where no pair has played.

    Args:
        cells: By "row-column"; the diagonal does not count.
        num_entries: Number of entries.
        roles: The two roles of the game, e.g. ("first", "second"); see `EnvSpec.role_names`.
        starts: Cluster of each task, the same in all cells.
    """
    draws = _Draws(starts)
    games = []
    points = []
    resampled_points = []
    for i, j in combinations(range(num_entries), 2):
        for sign, role, other_role in zip((1.0, -1.0), roles, reversed(roles), strict=True):
            seen = []
            cell = cells.get(f"{i}-{j}")
            if cell is not None:
                seen.append(_points(cell, role))
            mirrored = cells.get(f"{j}-{i}")
            if mirrored is not None:
                # The loss of one is the win of the other.
                seen.append(1 - _points(mirrored, other_role))
            if seen:
                games.append((i, j, sign))
                # Models behind a URL may have answered differently the second time.
                points_of_tasks = np.mean(seen, axis=0)
                points.append(float(points_of_tasks.sum()))
                resampled_points.append(draws.points(points_of_tasks))
    if not games:
        return None
    design = np.zeros((len(games), num_entries + 1))
    for number, (i, j, sign) in enumerate(games):
        design[number, i] = 1.0
        design[number, j] = -1.0
        design[number, num_entries] = sign
    num_tasks = len(starts)
    best = _fit(design, np.array(points), num_tasks, num_entries)
    # (RESAMPLES, games)
    points_by_sample = np.stack(resampled_points, axis=1)
    resampled = []
    for sample_points, sample_tasks in zip(points_by_sample, draws.num_tasks, strict=True):
        resampled.append(_fit(design, sample_points, sample_tasks, num_entries, start=best))
    fits = np.array(resampled)
    ratings = []
    for i in range(num_entries):
        ratings.append(_rating(best[i], fits[:, i]))
    return PlayerRatings(
        entries=tuple(ratings),
        first_role=roles[0],
        seat_effect=_rating(best[num_entries], fits[:, num_entries]),
        num_games=num_tasks * len(games),
    )


class _Draws:
    """Samples of starts, the same for all pairs and roles; see the module."""

    def __init__(self, starts: Sequence[int]) -> None:
        """Draw as many starts as there are, `RESAMPLES` times.

        Args:
            starts: Cluster of each task.
        """
        _, self._clusters = np.unique(np.asarray(starts), return_inverse=True)
        sizes = np.bincount(self._clusters)
        num_starts = len(sizes)
        self._mean_size = len(starts) / num_starts
        # With the extra start, see the module.
        chances = np.full(num_starts + 1, 1 / (num_starts + 1))
        self._rng = np.random.default_rng(_SEED)
        # (RESAMPLES, starts + 1): how often each start is in a sample.
        counts = self._rng.multinomial(num_starts, chances, size=RESAMPLES)
        self._num_extra = counts[:, -1]
        self._counts = counts.astype(np.float64)
        self.num_tasks: Values = self._counts @ np.append(sizes, self._mean_size)
        """(RESAMPLES,): tasks of each sample."""

    def points(self, points_of_tasks: Values) -> Values:
        """Return (RESAMPLES,) the points in each sample of a pair in one role.

        Args:
            points_of_tasks: (n,): the row's points in each task.
        """
        points_of_starts = np.bincount(self._clusters, weights=points_of_tasks)
        # The extra start's games are draws.
        points = self._counts @ np.append(points_of_starts, self._mean_size / 2)
        if np.all(points_of_tasks == _POINTS_OF_DRAW):
            # More draws would leave no variation at all.
            num_won = self._rng.binomial(self._num_extra, 0.5)
            points += self._mean_size * (num_won - self._num_extra / 2)
        return np.asarray(points, dtype=np.float64)


def _points(cell: EvaluationResult, role: str) -> Values:
    """Return (n,) the row's points in each task's game: 1 for a win, 0.5 for a draw, 0 else."""
    return (1 + np.asarray(cell.outcomes[role], dtype=np.float64)) / 2


def _fit(
    design: Values,
    points: Values,
    num_tasks: float,
    num_entries: int,
    start: Values | None = None,
) -> Values:
    """Return log odds of the entries, with mean 0, and the seat's; see the module.

    Args:
        design: (pairs and roles, entries + 1): what each parameter adds to the log odds of the
            row's win.
        points: (pairs and roles,): wins and half of the draws.
        num_tasks: Number of games of each pair in each role.
        num_entries: Number of entries.
        start: Where the search begins.
    """
    parameters = np.zeros(num_entries + 1) if start is None else start.copy()
    for _ in range(_MAX_NEWTON_STEPS):
        chances = _logistic(design @ parameters)
        # The drawn game of each entry and of the roles, see the module.
        drawn_chances = _logistic(parameters)
        slope = design.T @ (points - num_tasks * chances) + 0.5 - drawn_chances
        curvature = design.T @ (design * (num_tasks * chances * (1 - chances))[:, None])
        curvature += np.diag(drawn_chances * (1 - drawn_chances))
        step = np.linalg.solve(curvature, slope)
        # Newton's steps overshoot where a chance is near 0 or 1.
        step *= min(1.0, 2.0 / max(np.abs(step).max(), _TOLERANCE))
        parameters = parameters + step
        if np.abs(step).max() < _TOLERANCE:
            break
    parameters[:num_entries] -= parameters[:num_entries].mean()
    return parameters


def _logistic(values: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-values)), dtype=np.float64)


def _rating(best: float, resampled: Values) -> Rating:
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return Rating(mean=_POINTS * best, low=_POINTS * float(low), high=_POINTS * float(high))


# --- Partners


def rate_partners(matrix: Matrix) -> PartnerRatings | None:
    """Return the ratings of entries as partners; None where the cells do not determine them."""
    scores = matrix.scores
    num_entries = len(scores)
    is_other = ~np.eye(num_entries, dtype=bool)
    if num_entries < MIN_TEAMS or not np.isfinite(scores[is_other]).all():
        return None
    mean, rows, columns = _effects(scores)
    left_out: list[list[float]] = [[] for _ in range(num_entries)]
    if num_entries >= _MIN_TEAMS_FOR_JACKKNIFE:
        means = matrix.means
        for other in range(num_entries):
            kept = np.delete(np.arange(num_entries), other)
            _, rest_rows, rest_columns = _effects(means[np.ix_(kept, kept)])
            for position, entry in enumerate(kept):
                left_out[entry].append(float(rest_rows[position] + rest_columns[position]))
    entries = []
    for i in range(num_entries):
        expected = mean + rows[i] + columns[i]
        entries.append(
            PartnerRating(
                rating=matrix.over_tasks(rows[i] + columns[i]),
                error_partners=jackknife_error(left_out[i]) if left_out[i] else math.nan,
                row=matrix.over_tasks(rows[i]),
                column=matrix.over_tasks(columns[i]),
                own_convention=matrix.over_tasks(scores[i, i] - expected),
            )
        )
    return PartnerRatings(entries=tuple(entries), explained=_explained(matrix.means))


def _effects(scores: Values) -> tuple[Values, Values, Values]:
    """Return the least-squares mean, row effects and column effects off the diagonal.

    With N entries, row sums R_i, column sums C_i and their total T, all without the diagonal, the
    normal equations have the solution m = T / (N (N - 1)), r_i = ((N - 1) R_i + C_i - T) / (N (N -
    2)), and c_i with R and C exchanged.

    Args:
        scores: (N, N) or (N, N, n).

    Returns:
        () or (n,); (N,) or (N, n); the same.
    """
    count = len(scores)
    others = scores.copy()
    others[np.eye(count, dtype=bool)] = 0.0
    row_sums = others.sum(axis=1)
    column_sums = others.sum(axis=0)
    total = row_sums.sum(axis=0)
    rows = ((count - 1) * row_sums + column_sums - total) / (count * (count - 2))
    columns = ((count - 1) * column_sums + row_sums - total) / (count * (count - 2))
    return total / (count * (count - 1)), rows, columns


def _explained(means: Values) -> float:
    mean, rows, columns = _effects(means)
    is_other = ~np.eye(len(means), dtype=bool)
    fitted = mean + rows[:, None] + columns[None, :]
    around = np.square(means - mean)[is_other].sum()
    if around <= 0:
        return math.nan
    return float(1 - np.square(means - fitted)[is_other].sum() / around)
