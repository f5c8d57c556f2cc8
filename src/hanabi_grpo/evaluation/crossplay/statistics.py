"""Figures of a cross-play matrix: self-play minus cross-play, and the worst partners.

Notation: S[i, j, d] is the score of task d with entry i in seat 0 and entry j in every other seat;
N entries, n tasks. Every task is played by every pair, so each figure is first computed per task
and then averaged: whatever a task adds to all pairs alike cancels in every difference.

Two errors answer two questions. *Over tasks*: how would the figure vary with other tasks, for the
same entries? Tasks of one start are one cluster. *Over entries*: how would it vary with other
entries of the same kind (training seeds)? That is the delete-one-entry jackknife; it is the one to
quote for a claim about a training method.

Sources: H. Hu, A. Lerer, A. Peysakhovich, J. Foerster, "Other-Play" for Zero-Shot Coordination,
ICML 2020 (cross-play between independently trained agents); A. C. Cameron, D. L. Miller, A
Practitioner's Guide to Cluster-Robust Inference, Journal of Human Resources 50(2), 2015; J. N.
Arvesen, Jackknifing U-Statistics, Annals of Mathematical Statistics 40(6), 1969.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.runs.task_statistics import clustered_error

MIN_ENTRIES_FOR_JACKKNIFE = 3
"""With two entries, leaving one out leaves no cell off the diagonal."""


class Estimate(NamedTuple):
    """A mean over tasks and its standard error; both NaN where a cell is missing."""

    mean: float
    error: float


class BothErrors(NamedTuple):
    """A figure of the whole matrix with its two errors."""

    mean: float
    error_tasks: float
    error_entries: float
    """NaN with fewer than three entries or a missing cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFigures:
    """Figures of one entry of the matrix; errors are over tasks."""

    self_play: Estimate
    """S[i, i]: the entry with itself."""
    first_seat: Estimate
    """With the other entries, in seat 0: mean over j != i of S[i, j]."""
    other_seats: Estimate
    """With the other entries, in every other seat: mean over j != i of S[j, i]."""
    cross_play: Estimate
    """Mean of `first_seat` and `other_seats`."""
    gap: Estimate
    """`self_play` - `cross_play`, paired by task."""
    worst: Estimate
    """With the other entry with which it scores lowest: in both seats, or against an opponent in
    seat 0. It is chosen by the same noisy scores, which biases it downward."""
    worst_partner: int | None
    """That entry; None where a cell is missing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """The scores of a whole matrix on common tasks."""

    scores: NDArray[np.float64]
    """(N, N, n), see the module; NaN: not played."""
    starts: NDArray[np.int64]
    """(n,): cluster of each task."""
    is_team: bool = True
    """Whether a cell's score is that of both entries, so that both orders of a pair count."""

    @property
    def means(self) -> NDArray[np.float64]:
        """(N, N): mean score of each cell."""
        return self.scores.mean(axis=2)

    def over_tasks(self, values: NDArray[np.float64]) -> Estimate:
        """Return mean and cluster-robust standard error of (n,) values, one per task."""
        _, clusters = np.unique(self.starts, return_inverse=True)
        mean, error, _ = clustered_error(values, clusters)
        return Estimate(mean, error)

    def cell(self, row: int, column: int) -> Estimate:
        """Return one cell."""
        return self.over_tasks(self.scores[row, column])

    def entry(self, entry: int) -> EntryFigures:
        """Return the figures of one entry."""
        self_play = self.scores[entry, entry]
        # (N - 1, n): the row and the column without their common cell.
        row = np.delete(self.scores[entry], entry, axis=0)
        column = np.delete(self.scores[:, entry], entry, axis=0)
        first_seat = row.mean(axis=0)
        other_seats = column.mean(axis=0)
        cross_play = (first_seat + other_seats) / 2
        worst_partner = None
        worst = Estimate(math.nan, math.nan)
        # (N - 1, n): with each other entry.
        with_others = (row + column) / 2 if self.is_team else row
        if np.isfinite(with_others).all():
            position = int(with_others.mean(axis=1).argmin())
            # The row lacks the entry's own cell, so later positions are one lower.
            worst_partner = position if position < entry else position + 1
            worst = self.over_tasks(with_others[position])
        return EntryFigures(
            self_play=self.over_tasks(self_play),
            first_seat=self.over_tasks(first_seat),
            other_seats=self.over_tasks(other_seats),
            cross_play=self.over_tasks(cross_play),
            gap=self.over_tasks(self_play - cross_play),
            worst=worst,
            worst_partner=worst_partner,
        )

    def whole(self) -> dict[str, BothErrors]:
        """Return "self_play", "cross_play" and their difference "gap".

        Self-play is the mean of the diagonal, cross-play the mean off it. Both orders of a pair are
        in the mean off the diagonal, so it is also the mean of the symmetric pairs.
        """
        return {
            "self_play": self._both_errors(1.0, 0.0),
            "cross_play": self._both_errors(0.0, 1.0),
            "gap": self._both_errors(1.0, -1.0),
        }

    def _both_errors(self, diagonal_weight: float, other_weight: float) -> BothErrors:
        """Return one figure of the whole matrix, see `_weighted_mean`."""
        per_task = _weighted_mean(self.scores, diagonal_weight, other_weight)
        estimate = self.over_tasks(per_task)
        num_entries = len(self.scores)
        error_entries = math.nan
        if num_entries >= MIN_ENTRIES_FOR_JACKKNIFE:
            means = self.means
            leave_one_out = []
            for left_out in range(num_entries):
                kept = np.delete(np.arange(num_entries), left_out)
                rest = means[np.ix_(kept, kept)]
                leave_one_out.append(float(_weighted_mean(rest, diagonal_weight, other_weight)))
            error_entries = jackknife_error(leave_one_out)
        return BothErrors(estimate.mean, estimate.error, error_entries)


def jackknife_error(leave_one_out: Sequence[float]) -> float:
    """Return the jackknife standard error of N leave-one-out figures t_k.

    It is sqrt((N - 1) / N * sum of (t_k - mean t)^2).
    """
    values = np.asarray(leave_one_out, dtype=np.float64)
    count = len(values)
    squares = np.square(values - values.mean()).sum()
    return float(np.sqrt((count - 1) / count * squares))


def _weighted_mean(
    cells: NDArray[np.float64], diagonal_weight: float, other_weight: float
) -> NDArray[np.float64]:
    """Return the weighted sum of the mean of the diagonal and the mean off it.

    Args:
        cells: (N, N) or (N, N, n).
        diagonal_weight: Weight of the mean of the diagonal.
        other_weight: Weight of the mean off the diagonal.

    Returns:
        () or (n,).
    """
    is_diagonal = np.eye(len(cells), dtype=bool)
    total = np.zeros(cells.shape[2:])
    # With a weight of 0, a missing cell must not make the sum NaN.
    if diagonal_weight:
        total = total + diagonal_weight * cells[is_diagonal].mean(axis=0)
    if other_weight:
        total = total + other_weight * cells[~is_diagonal].mean(axis=0)
    return np.asarray(total)
