"""How a player's sequences are cut into micro-batches, and which prefixes they share.

The games of a group have one task, so a player's sequences share a prefix, for some turns or to the
end. Behind equal tokens a causal model computes equal values, and in the gradient of a sum it needs
their sum alone. So sequences are a tree, in which a shared prefix is there once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

USEFUL_SHARE = 0.9
"""A micro-batch takes no shorter sequence if fewer of its tokens than this share are no padding."""
_SMALLEST = 8
"""A micro-batch with less than the limit divided by this takes further sequences all the same.

Each micro-batch has a fixed cost as well.
"""
_ATTENTION_TOKENS = 4
"""Tokens that only attention sees, and that weigh as much in memory as one that a whole layer sees.

At most: of all that a layer keeps for its gradient, attention holds a query, a key, a value and an
output of each.
"""


def cut_by_rows(num_rows: int, parts: int) -> list[tuple[int, int]]:
    """Return `parts` spans of equally many rows, or one fewer.

    Example:
        >>> cut_by_rows(5, 2)
        [(0, 2), (2, 5)]
    """
    spans = []
    for number in range(parts):
        start = num_rows * number // parts
        end = num_rows * (number + 1) // parts
        spans.append((start, end))
    return spans


def cut_by_tokens(lengths: Sequence[int], limit: int, ranks: int) -> list[tuple[int, int]]:
    """Return spans of rows that hold at most `limit` tokens on each rank, padding included.

    Every rank takes every `ranks`-th row of a span; a row that is longer makes a span of its own.
    The number of spans depends on the lengths alone, so that all ranks find the same.

    Args:
        lengths: Tokens of each row, the longest first.
        limit: Tokens of one rank in one span.
        ranks: Trainer processes.

    Returns:
        At least one span.
    """

    def padded(num_rows: int, width: int) -> int:
        """Return the tokens of the rank with the most of so many rows."""
        rows_of_rank = -(-num_rows // ranks)
        return rows_of_rank * width

    spans = []
    start = 0
    useful = 0
    for row, length in enumerate(lengths):
        num_rows = row - start
        width = lengths[start]
        # The ranks' first rows are taken together: each of them works on one anyway.
        if num_rows and num_rows % ranks == 0:
            is_full = padded(num_rows + 1, width) > limit
            is_padding = useful + length < USEFUL_SHARE * width * (num_rows + 1)
            is_large = padded(num_rows, width) * _SMALLEST >= limit
            if is_full or (is_padding and is_large):
                spans.append((start, row))
                start = row
                useful = 0
        useful += length
    spans.append((start, len(lengths)))
    return spans


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """Sequences as nodes; a node is a token behind all tokens before it. Tensors of int64.

    Example: the sequences 5 6 7 and 5 6 8 have the nodes 5, 6, 7 and 8: `ids` is [5, 6, 7, 8],
    `positions` [0, 1, 2, 2], and the one block [[0, 1, 2], [0, 1, 3]].
    """

    ids: torch.Tensor
    """[nodes] token of each."""
    positions: torch.Tensor
    """[nodes] tokens before it."""
    blocks: tuple[torch.Tensor, ...]
    """[rows, tokens] each: nodes of the sequences that no other one begins with.

    Rows are filled on the right with any node. A block has sequences of about the same length.
    """
    homes: torch.Tensor
    """[nodes] where each node stands in the flattened blocks, one after the other."""
    predicting: torch.Tensor
    """[replies] node whose output predicts a reply token, row by row of the tree's batch."""
    num_predicting: int
    """Different nodes among them."""


def prefix_tree(ids: torch.Tensor, mask: torch.Tensor) -> PrefixTree:
    """Return the tree of a batch; tokens that no reply token comes after are left out.

    Args:
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is a reply's.
    """
    tokens = ids.cpu().numpy()
    marks = mask.cpu().numpy()
    used_lengths = [_used_length(row_marks) for row_marks in marks]
    used_tokens = []
    for row_tokens, length in zip(tokens, used_lengths, strict=True):
        used_tokens.append(row_tokens[:length])
    order = PrefixOrder(used_tokens)

    # Sequence by sequence in an order in which neighbours share the most: a node for each token
    # that the one before does not begin with.
    width = max(used_lengths)
    nodes = np.zeros((len(tokens), width), dtype=np.int64)
    new_tokens = []
    new_positions = []
    num_nodes = 0
    nodes_before = nodes[0]
    for row, length, shared in zip(order.order, order.lengths, order.shared, strict=True):
        num_new = length - shared
        nodes[row] = nodes_before
        nodes[row, shared:length] = np.arange(num_nodes, num_nodes + num_new)
        new_tokens.append(tokens[row, shared:length])
        new_positions.append(np.arange(shared, length))
        nodes_before = nodes[row]
        num_nodes += num_new

    complete = []
    for row, length, is_end in zip(order.order, order.lengths, order.ends, strict=True):
        if is_end:
            complete.append((length, row))
    blocks, homes = _blocks(nodes, sorted(complete, reverse=True), num_nodes)

    def column(values: np.ndarray) -> torch.Tensor:
        array = np.ascontiguousarray(values, dtype=np.int64)
        return torch.from_numpy(array).to(ids.device)

    predicting = nodes[marks[:, :width].nonzero()]
    return PrefixTree(
        ids=column(np.concatenate(new_tokens)),
        positions=column(np.concatenate(new_positions)),
        blocks=tuple(column(block) for block in blocks),
        homes=column(homes),
        predicting=column(predicting),
        num_predicting=len(np.unique(predicting)),
    )


def _used_length(marks: np.ndarray) -> int:
    """Return how many of a row's tokens some reply token comes after; at least one."""
    if not marks.any():
        return 1
    last_mark = int(marks.nonzero()[0][-1])
    return last_mark + 1


def _blocks(
    nodes: np.ndarray, complete: list[tuple[int, int]], num_nodes: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the nodes of complete sequences in blocks, and where each node stands in them.

    Args:
        nodes: [rows, tokens] of all sequences.
        complete: Length and row of each sequence that no other one begins with, the longest first.
        num_nodes: Of the tree.
    """
    lengths = [length for length, _ in complete]
    no_limit = len(lengths) * lengths[0]
    blocks = []
    homes = np.zeros(num_nodes, dtype=np.int64)
    offset = 0
    for start, end in cut_by_tokens(lengths, no_limit, 1):
        width = lengths[start]
        rows = []
        for number, (length, row) in enumerate(complete[start:end]):
            first_home = offset + number * width
            homes[nodes[row, :length]] = np.arange(first_home, first_home + length)
            rows.append(row)
        block = nodes[rows, :width]
        blocks.append(block)
        offset += block.size
    return blocks, homes


class PrefixOrder:
    """Sequences of int64 in an order in which those that share a prefix stand together."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        """Sort the sequences, at least one."""
        keys = [sequence.tobytes() for sequence in sequences]
        self.order = sorted(range(len(keys)), key=keys.__getitem__)
        """Number of each sequence."""
        ordered = [sequences[number] for number in self.order]
        self.lengths = [len(sequence) for sequence in ordered]
        """Tokens of each, in this order."""
        self.shared = [0]
        """First tokens that each has in common with the one before it."""
        self.ends: list[bool] = []
        """Whether the next sequence does not begin with this one."""
        for sequence, following in pairwise(ordered):
            num_common = _num_common(sequence, following)
            self.shared.append(num_common)
            self.ends.append(num_common < len(sequence))
        self.ends.append(self.lengths[-1] > 0)
        self._num_new = np.cumsum([0, *np.subtract(self.lengths, self.shared)])
        self._num_ends = np.cumsum([0, *self.ends])

    def weight(self, start: int, end: int) -> float:
        """Return what some neighbours take, in tokens of sequences that share nothing.

        Args:
            start: Place of the first one in this order.
            end: Place behind the last one.
        """
        if start == end:
            return 0.0
        num_nodes = self._num_new[end] - self._num_new[start] + self.shared[start]
        # The last one ends here whatever comes after it.
        num_rows = self._num_ends[end - 1] - self._num_ends[start] + 1
        attention = num_rows * max(self.lengths[start:end])
        return float((_ATTENTION_TOKENS * num_nodes + attention) / (_ATTENTION_TOKENS + 1))

    def heaviest_share(self, span: tuple[int, int], ranks: int) -> float:
        """Return what the heaviest of all ranks' shares of a span weighs, the same on every rank.

        Args:
            span: Of sequences in this order.
            ranks: Trainer processes.
        """
        weights = []
        for rank in range(ranks):
            start, end = share_of(span, rank, ranks)
            weights.append(self.weight(start, end))
        return max(weights)

    def cut(self, limit: int, ranks: int) -> list[tuple[int, int]]:
        """Return spans of which no rank's share is too heavy.

        The number of spans depends on the sequences alone, so that all ranks find the same.

        Args:
            limit: Most that a share weighs, unless it holds one sequence only.
            ranks: Trainer processes.
        """
        spans = []
        start = 0
        for end in range(1, len(self.order) + 1):
            if end - start <= ranks:
                continue
            if self.heaviest_share((start, end), ranks) > limit:
                spans.append((start, end - 1))
                start = end - 1
        spans.append((start, len(self.order)))
        return spans


def share_of(span: tuple[int, int], rank: int, ranks: int) -> tuple[int, int]:
    """Return a rank's part of a span of sequences: neighbours, which share the most.

    Args:
        span: Of sequences in a `PrefixOrder`.
        rank: Number of the process.
        ranks: Trainer processes.
    """
    start, end = span
    length = end - start
    share_start = start + length * rank // ranks
    share_end = start + length * (rank + 1) // ranks
    return share_start, share_end


def _num_common(sequence: np.ndarray, other: np.ndarray) -> int:
    """Return how many first tokens two sequences have in common."""
    length = min(len(sequence), len(other))
    differing = np.flatnonzero(sequence[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
