"""Mutual information of two choices, above what chance would show."""

import numpy as np


def information_above_chance(counts: np.ndarray) -> float:
    """Return I(A; B) in bits of a table [a, b] of how often a was followed by b, less `chance_information`."""
    return _entropy(counts.sum(axis=1)) + _entropy(counts.sum(axis=0)) - _entropy(counts) - chance_information(counts)


def chance_information(counts: np.ndarray) -> float:
    """Return the mean of the mutual information over all ways to pair the same moves anew (the permutation baseline).

    With row sums a, column sums b and N observations, a cell is hypergeometric, so the mean is
    sum_ij sum_k (k / N) log2(N k / (a_i b_j)) P(k; N, a_i, b_j). Independent moves have this value on average; of moves
    that depend on each other it takes off rather too much.

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
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, num + 1)))))
    bits = 0.0
    for row in rows:
        lowest, highest = np.maximum(1, row + columns - num), np.minimum(row, columns)
        steps = np.arange(max(0, int((highest - lowest).max()) + 1))
        inside = lowest[:, None] + steps <= highest[:, None]
        cell = np.where(inside, lowest[:, None] + steps, highest[:, None])
        column = columns[:, None]
        ways = _log_choose(log_factorial, column, cell) + _log_choose(log_factorial, num - column, row - cell)
        chance = np.where(inside, np.exp(ways - _log_choose(log_factorial, num, row)), 0.0)
        bits += float((chance * cell / num * np.log2(num * cell / (row * column))).sum())
    return bits


def _entropy(counts: np.ndarray) -> float:
    """Return -sum p log2 p in bits."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _log_choose(log_factorial: np.ndarray, many: np.ndarray | int, few: np.ndarray | int) -> np.ndarray:
    return log_factorial[many] - log_factorial[few] - log_factorial[many - few]
