"""Figures of a cross-play matrix: self-play minus cross-play, the worst partners, the ranking, swapped seats.

Notation: S[i, j, d] is the score of deal d with entry i in seat 0 and entry j in every other seat; N entries, n deals.
Every deal is played by every pair, so each figure is first computed deal by deal and then averaged: what a deck gives
to all pairs alike drops out of every difference.

Two errors answer two questions. *Over deals*: how would the figure vary with other decks, for these very entries?
Deals of one deck are one cluster. *Over entries*: how would it vary with other entries of the same kind (training
seeds)? That is the delete-one-entry jackknife; it is the one to quote for a claim about a training method.

Sources: H. Hu, A. Lerer, A. Peysakhovich, J. Foerster, "Other-Play" for Zero-Shot Coordination, ICML 2020 (cross-play
between independently trained agents); A. C. Cameron, D. L. Miller, A Practitioner's Guide to Cluster-Robust Inference,
Journal of Human Resources 50(2), 2015; J. N. Arvesen, Jackknifing U-Statistics, Annals of Mathematical Statistics
40(6), 1969.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.runs.deal_statistics import clustered_error

MIN_ENTRIES_FOR_JACKKNIFE = 3
WORST_SHARE = 0.1


class Estimate(NamedTuple):
    """A mean over deals and its standard error; both NaN where a cell is missing."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """The scores of a whole matrix on common deals."""

    scores: NDArray[np.float64]
    """(N, N, n), see the module; NaN: not played."""
    decks: NDArray[np.int64]
    """(n,): equal numbers are equal decks."""

    @property
    def num_entries(self) -> int:
        """N."""
        return len(self.scores)

    @property
    def means(self) -> NDArray[np.float64]:
        """(N, N): mean score of each cell."""
        return self.scores.mean(axis=2)

    @property
    def is_complete(self) -> bool:
        """Whether every cell was played."""
        return bool(np.isfinite(self.scores).all())

    def cell(self, row: int, column: int) -> Estimate:
        """Return one cell."""
        return over_deals(self.scores[row, column], self.decks)

    def cross(self, entry: int) -> NDArray[np.float64]:
        """Return (n,) scores of an entry with the others: mean over j != i of (S[i, j] + S[j, i]) / 2."""
        return (self._others(self.scores[entry], entry) + self._others(self.scores[:, entry], entry)) / 2

    def first(self, entry: int) -> NDArray[np.float64]:
        """Return (n,) scores of an entry in seat 0: mean over j != i of S[i, j]."""
        return self._others(self.scores[entry], entry)

    def last(self, entry: int) -> NDArray[np.float64]:
        """Return (n,) scores of an entry in every seat but 0: mean over j != i of S[j, i]."""
        return self._others(self.scores[:, entry], entry)

    def _others(self, cells: NDArray[np.float64], entry: int) -> NDArray[np.float64]:
        return np.delete(cells, entry, axis=0).mean(axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFigures:
    """What the matrix says of one entry; `Estimate`s have their error over deals."""

    self_play: Estimate
    first_seat: Estimate
    """With the others, sitting in seat 0."""
    other_seats: Estimate
    """With the others, sitting everywhere else."""
    cross_play: Estimate
    """Mean of the two."""
    gap: Estimate
    """`self_play` - `cross_play`, paired over deals."""
    gap_error_partners: float
    """Standard error of `gap` over partners; NaN with fewer than two of them."""
    worst: Estimate
    """Mean over `worst_partners`. The choice is made by the same noisy cells, which biases it downwards a little."""
    worst_partners: tuple[int, ...]
    """The ceil(10 %) of the others with the lowest cells in this row, worst first; empty where a cell is missing."""
    rank: int | None
    """1: best partner on average, by `cross_play`; None until every cell is there."""
    behind_best: Estimate
    """`cross_play` of the best partner minus this one's, paired over deals; 0 for the best."""


class BothErrors(NamedTuple):
    """A figure of the whole matrix."""

    mean: float
    error_deals: float
    error_entries: float
    """Delete-one-entry jackknife; NaN with fewer than three entries or a missing cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFigures:
    """What the matrix says as a whole."""

    self_play: BothErrors
    """Mean of the diagonal."""
    cross_play: BothErrors
    """Mean off the diagonal; both orders of a pair are in it, so it is also the mean of the symmetric pairs."""
    gap: BothErrors
    """`self_play` - `cross_play`."""


def over_deals(values: NDArray[np.float64], decks: NDArray[np.int64]) -> Estimate:
    """Return mean and cluster-robust standard error over deals, without the interval of `deal_statistics.estimate`.

    Args:
        values: (n,), one per deal.
        decks: (n,), see `Matrix.decks`.
    """
    mean, error, _ = clustered_error(values, np.unique(decks, return_inverse=True)[1])
    return Estimate(mean, error)


def jackknife_error(leave_one_out: Sequence[float]) -> float:
    """Return the jackknife standard error sqrt((N - 1) / N * sum of (t_k - mean t)^2) of N leave-one-out figures."""
    values = np.asarray(leave_one_out, dtype=np.float64)
    return float(np.sqrt((len(values) - 1) / len(values) * np.square(values - values.mean()).sum()))


def matrix_figures(matrix: Matrix) -> MatrixFigures:
    """Return self-play, cross-play and their gap over the whole matrix of at least two entries."""
    return MatrixFigures(
        self_play=_both(matrix, weights=(1.0, 0.0)),
        cross_play=_both(matrix, weights=(0.0, 1.0)),
        gap=_both(matrix, weights=(1.0, -1.0)),
    )


def entry_figures(matrix: Matrix) -> list[EntryFigures]:
    """Return the figures of every entry of a matrix of at least two."""
    crosses = [matrix.cross(entry) for entry in range(matrix.num_entries)]
    means = [float(cross.mean()) for cross in crosses]
    order = sorted(range(matrix.num_entries), key=lambda entry: -means[entry]) if matrix.is_complete else []
    cells = matrix.means
    return [_entry(matrix, entry, cells, crosses, order) for entry in range(matrix.num_entries)]


def worst_partners(row: Sequence[float], entry: int) -> tuple[int, ...]:
    """Return the lowest ceil(10 %) of the other entries in a row of means, worst first; none if one is missing."""
    others = [(mean, partner) for partner, mean in enumerate(row) if partner != entry]
    if not all(math.isfinite(mean) for mean, _ in others):
        return ()
    return tuple(partner for _, partner in sorted(others)[: math.ceil(WORST_SHARE * len(others))])


def paired(minuend: NDArray[np.float64], subtrahend: NDArray[np.float64], decks: NDArray[np.int64]) -> Estimate:
    """Return mean and error of a difference of two (n,) score lists of the same deals."""
    return over_deals(minuend - subtrahend, decks)


def _entry(
    matrix: Matrix,
    entry: int,
    means: NDArray[np.float64],
    crosses: Sequence[NDArray[np.float64]],
    order: Sequence[int],
) -> EntryFigures:
    own, decks = matrix.scores[entry, entry], matrix.decks
    pairs = np.delete((means[entry] + means[:, entry]) / 2, entry)
    worst = worst_partners(means[entry].tolist(), entry)
    nothing = Estimate(math.nan, math.nan)
    return EntryFigures(
        self_play=over_deals(own, decks),
        first_seat=over_deals(matrix.first(entry), decks),
        other_seats=over_deals(matrix.last(entry), decks),
        cross_play=over_deals(crosses[entry], decks),
        gap=paired(own, crosses[entry], decks),
        # The jackknife of a mean is its standard deviation over the root of the number of partners.
        gap_error_partners=float(pairs.std(ddof=1) / len(pairs) ** 0.5) if len(pairs) > 1 else math.nan,
        worst=over_deals(matrix.scores[entry, list(worst)].mean(axis=0), decks) if worst else nothing,
        worst_partners=worst,
        rank=order.index(entry) + 1 if order else None,
        behind_best=paired(crosses[order[0]], crosses[entry], decks) if order else nothing,
    )


def _both(matrix: Matrix, weights: tuple[float, float]) -> BothErrors:
    estimate = over_deals(_combine(matrix.scores, weights), matrix.decks)
    means, count = matrix.means, matrix.num_entries
    error = math.nan
    if count >= MIN_ENTRIES_FOR_JACKKNIFE:
        kept = [[index for index in range(count) if index != left_out] for left_out in range(count)]
        error = jackknife_error([float(_combine(means[np.ix_(some, some)], weights)) for some in kept])
    return BothErrors(estimate.mean, estimate.error, error)


def _combine(cells: NDArray[np.float64], weights: tuple[float, float]) -> NDArray[np.float64]:
    """Return the weighted sum of the diagonal's mean and the mean off it, over the first two axes."""
    diagonal = np.eye(len(cells), dtype=bool)
    on, off = weights
    # A weight of 0 must not let a missing cell in.
    parts = [weight * cells[mask].mean(axis=0) for weight, mask in ((on, diagonal), (off, ~diagonal)) if weight]
    return np.asarray(sum(parts))
