"""Figures of a cross-play matrix: self-play minus cross-play, and the worst partners.

Notation: S[i, j, d] is the score of task d with entry i in seat 0 and entry j in every other seat;
N entries, n tasks.
Every task is played by every pair, so each figure is first computed task by task and then averaged:
what a task gives to all pairs alike drops out of every difference.

Two errors answer two questions. *Over tasks*: how would the figure vary with other tasks, for these
very entries? Tasks of one start are one cluster. *Over entries*: how would it vary with other
entries of the same kind (training seeds)? That is the delete-one-entry jackknife; it is the one to
quote for a claim about a training method.

Sources: H. Hu, A. Lerer, A. Peysakhovich, J. Foerster, "Other-Play" for Zero-Shot Coordination,
ICML 2020 (cross-play
between independently trained agents); A. C. Cameron, D. L. Miller, A Practitioner's Guide to
Cluster-Robust Inference, Journal of Human Resources 50(2), 2015; J. N. Arvesen, Jackknifing
U-Statistics, Annals of Mathematical Statistics 40(6), 1969."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.runs.task_statistics import clustered_error


class Estimate(NamedTuple):
    """A mean over tasks and its standard error; both NaN where a cell is missing."""

    mean: float
    error: float


class BothErrors(NamedTuple):
    """A figure of the whole matrix; `error_entries` is NaN with fewer than three entries or a
    missing cell.
    """

    mean: float
    error_tasks: float
    error_entries: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFigures:
    """What the matrix says of one entry; errors are over tasks."""

    self_play: Estimate
    first_seat: Estimate
    """With the others, sitting in seat 0: mean over j != i of S[i, j]."""
    other_seats: Estimate
    """With the others, sitting everywhere else: mean over j != i of S[j, i]."""
    cross_play: Estimate
    """Mean of the two."""
    gap: Estimate
    """`self_play` - `cross_play`, paired over tasks."""
    worst: Estimate
    """The lowest cell of the row but its own. The choice is made by the same noisy cells, which
    biases it downwards.
    """
    worst_partner: int | None
    """Whose it is; None where a cell is missing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """The scores of a whole matrix on common tasks."""

    scores: NDArray[np.float64]
    """(N, N, n), see the module; NaN: not played."""
    starts: NDArray[np.int64]
    """(n,): cluster of each task."""

    @property
    def means(self) -> NDArray[np.float64]:
        """(N, N): mean score of each cell."""
        return self.scores.mean(axis=2)

    def over_tasks(self, values: NDArray[np.float64]) -> Estimate:
        """Return mean and cluster-robust standard error of (n,) values, one per task."""
        mean, error, _ = clustered_error(values, np.unique(self.starts, return_inverse=True)[1])
        return Estimate(mean, error)

    def cell(self, row: int, column: int) -> Estimate:
        """Return one cell."""
        return self.over_tasks(self.scores[row, column])

    def entry(self, entry: int) -> EntryFigures:
        """Return the figures of one entry."""
        first, last = (
            np.delete(cells, entry, axis=0) for cells in (self.scores[entry], self.scores[:, entry])
        )
        own, cross = self.scores[entry, entry], (first.mean(axis=0) + last.mean(axis=0)) / 2
        worst = None
        if np.isfinite(first).all():
            number = int(first.mean(axis=1).argmin())
            worst = number + (number >= entry)
        return EntryFigures(
            self_play=self.over_tasks(own),
            first_seat=self.over_tasks(first.mean(axis=0)),
            other_seats=self.over_tasks(last.mean(axis=0)),
            cross_play=self.over_tasks(cross),
            gap=self.over_tasks(own - cross),
            worst=Estimate(math.nan, math.nan) if worst is None else self.cell(entry, worst),
            worst_partner=worst,
        )

    def whole(self) -> dict[str, BothErrors]:
        """Return the mean of the diagonal ("self_play"), the mean off it ("cross_play") and their
        difference ("gap").

        Both orders of a pair are in the mean off the diagonal, so it is also the mean of the
        symmetric pairs."""
        weights = {"self_play": (1.0, 0.0), "cross_play": (0.0, 1.0), "gap": (1.0, -1.0)}
        return {name: self._both(*pair) for name, pair in weights.items()}

    def _both(self, on: float, off: float) -> BothErrors:
        estimate, error = self.over_tasks(_combine(self.scores, on, off)), math.nan
        count, means = len(self.scores), self.means
        if count >= 3:  # of two, what is left has no other entry
            kept = [
                [index for index in range(count) if index != left_out] for left_out in range(count)
            ]
            error = jackknife_error(
                [float(_combine(means[np.ix_(some, some)], on, off)) for some in kept]
            )
        return BothErrors(*estimate, error)


def jackknife_error(leave_one_out: Sequence[float]) -> float:
    """Return the jackknife standard error sqrt((N - 1) / N * sum of (t_k - mean t)^2) of N
    leave-one-out figures.
    """
    values = np.asarray(leave_one_out, dtype=np.float64)
    return float(np.sqrt((len(values) - 1) / len(values) * np.square(values - values.mean()).sum()))


def _combine(cells: NDArray[np.float64], on: float, off: float) -> NDArray[np.float64]:
    """Return the weighted sum of the diagonal's mean and the mean off it, over the first two
    axes.
    """
    diagonal = np.eye(len(cells), dtype=bool)
    # A weight of 0 must not let a missing cell in.
    parts = [
        weight * cells[mask].mean(axis=0)
        for weight, mask in ((on, diagonal), (off, ~diagonal))
        if weight
    ]
    return np.asarray(sum(parts))
