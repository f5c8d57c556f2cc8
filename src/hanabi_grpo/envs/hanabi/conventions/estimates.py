"""Standard errors over deals, and mutual information."""

from dataclasses import dataclass

import numpy as np

MIN_COUNT = 30
"""Observations below which a figure says little; pages show such figures in grey."""

_MANY = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, its standard error, and how much it rests on.

    Example:
        Estimate(value=0.62, error=0.03, count=215)
    """

    value: float | None
    """None: nothing was observed."""
    error: float | None
    """Standard error over deals; None where fewer than two groups of deals observed something."""
    count: int
    """Observations: the number that a share or mean is divided by."""

    @property
    def is_thin(self) -> bool:
        """True for a figure from fewer than `MIN_COUNT` observations."""
        return self.count < MIN_COUNT


def leave_one_out(groups: np.ndarray) -> np.ndarray:
    """Return the sums of counters over all groups, then over all but one at a time.

    Args:
        groups: [group, counter].

    Returns:
        [1 + group, counter].
    """
    total = groups.sum(axis=0)
    return np.vstack([total, total - groups])


def standard_error(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the standard error of a figure by the delete-a-group jackknife for groups of unequal size.

    With sizes m_j that sum to n, h_j = n / m_j, the figure t on everything and t_j without group j:
    s_j = h_j t - (h_j - 1) t_j, J = sum_j (m_j / n) s_j, variance = (1 / g) sum_j (s_j - J)^2 / (h_j - 1).
    For the mean of groups of one game each, it is the standard deviation divided by sqrt(n).

    Source: Busing, Meijer, van der Leeden (1999), "Delete-m jackknife for unequal m", Statistics and Computing 9.

    Args:
        values: [1 + group, ...], as `leave_one_out` orders them.
        sizes: [group], games of each group.

    Returns:
        [...]; NaN where a value is NaN or there are fewer than two groups.
    """
    if len(sizes) < 2:
        return np.full(values.shape[1:], np.nan)
    axes = (slice(None), *[None] * (values.ndim - 1))
    share = (sizes / sizes.sum())[axes]
    ratio = 1 / share
    pseudo = ratio * values[0] - (ratio - 1) * values[1:]
    center = (share * pseudo).sum(axis=0)
    return np.sqrt(((pseudo - center) ** 2 / (ratio - 1)).mean(axis=0))


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotients; NaN where the denominator is 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    return np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator != 0)


def entropy(counts: np.ndarray) -> np.ndarray:
    """Return entropies in bits, -sum p log2 p over the last axis; NaN without observations."""
    total = counts.sum(axis=-1)
    shares = divide(counts, total[..., None])
    logs = np.log2(shares, out=np.zeros(counts.shape), where=counts > 0)
    return np.where(total > 0, 0 - (shares * logs).sum(axis=-1), np.nan)


def mutual_information(counts: np.ndarray) -> np.ndarray:
    """Return I(A; B) = H(A) + H(B) - H(A, B) in bits, as observed: with few observations far too high.

    `chance_information` is what to take off.

    Args:
        counts: [..., a, b], how often a was followed by b.

    Returns:
        [...]; NaN without observations.
    """
    joint = counts.reshape(*counts.shape[:-2], -1)
    return entropy(counts.sum(axis=-1)) + entropy(counts.sum(axis=-2)) - entropy(joint)


def chance_information(counts: np.ndarray) -> float:
    """Return the mean of `mutual_information` over all ways to pair the same moves anew (the permutation baseline).

    With row sums a, column sums b and N observations, a cell is hypergeometric, so the mean is
    sum_ij sum_k (k / N) log2(N k / (a_i b_j)) P(k; N, a_i, b_j). Independent moves have this value on average; of moves
    that depend on each other it takes off rather too much. Values of k beyond 10 standard deviations are left out, and
    from `_MANY` observations on the limit of the sum is taken: (R - 1) (C - 1) / (2 N ln 2) for R rows and C columns.

    Source: Vinh, Epps, Bailey (2010), "Information theoretic measures for clusterings comparison", theorem 2.

    Args:
        counts: [a, b].

    Returns:
        Bits; 0 without observations.
    """
    num = int(counts.sum())
    if num < 2:
        return 0.0
    rows, columns = (sums[sums > 0] for sums in (counts.sum(axis=1), counts.sum(axis=0)))
    if num > _MANY:
        return float((len(rows) - 1) * (len(columns) - 1) / (2 * np.log(2) * num))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, num + 1)))))
    bits = 0.0
    for row in rows:
        mean = row * columns / num
        reach = 10 * np.sqrt(mean * (1 - row / num) * (num - columns) / (num - 1)) + 10
        lowest = np.maximum(np.maximum(1, row + columns - num), np.floor(mean - reach)).astype(np.int64)
        highest = np.minimum(np.minimum(row, columns), np.ceil(mean + reach)).astype(np.int64)
        steps = np.arange(max(0, int((highest - lowest).max()) + 1))
        inside = lowest[:, None] + steps <= highest[:, None]
        cell = np.where(inside, lowest[:, None] + steps, highest[:, None])
        column = columns[:, None]
        ways = _log_choose(log_factorial, column, cell) + _log_choose(log_factorial, num - column, row - cell)
        chance = np.where(inside, np.exp(ways - _log_choose(log_factorial, num, row)), 0.0)
        bits += float((chance * cell / num * np.log2(num * cell / (row * column))).sum())
    return bits


def _log_choose(log_factorial: np.ndarray, many: np.ndarray | int, few: np.ndarray | int) -> np.ndarray:
    return log_factorial[many] - log_factorial[few] - log_factorial[many - few]
