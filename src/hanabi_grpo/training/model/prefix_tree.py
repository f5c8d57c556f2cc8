"""How a player's sequences are cut into micro-batches, and which prefixes they share.

The episodes of a group have the same task, so a player's sequences share a prefix, for some turns
or completely. A causal model computes equal values for equal prefixes, and the gradient of a sum
only needs the sum of their gradients. Sequences are therefore stored as a tree that contains a
shared prefix once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

USEFUL_SHARE = 0.9
"""A micro-batch takes no further sequence if the share of real tokens would fall below this."""
_SMALLEST = 8
"""A micro-batch below 1 / `_SMALLEST` of the limit takes further sequences despite padding.

The reason is the fixed cost of each micro-batch.
"""
_ATTENTION_TOKENS = 4
"""Number of tokens in attention only that take as much memory as one token in a whole layer.

This is an upper bound: of everything that a layer stores for its gradient, attention has a query, a
key, a value and an output per token.
"""


def cut_by_rows(num_rows: int, parts: int) -> list[tuple[int, int]]:
    """Return `parts` spans of rows, whose lengths differ by at most one.

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
    """Return spans of rows with at most `limit` tokens on each rank, including padding.

    Every rank takes every `ranks`-th row of a span; a row longer than the limit is a separate span.
    The spans depend only on the lengths, so that all ranks compute the same ones.

    Args:
        lengths: Tokens of each row, the longest first.
        limit: Most tokens of a rank in a span.
        ranks: Number of trainer processes.

    Returns:
        At least one span.
    """

    def padded(num_rows: int, width: int) -> int:
        """Return the tokens, including padding, of the rank with the most rows."""
        rows_of_rank = -(-num_rows // ranks)
        return rows_of_rank * width

    spans = []
    start = 0
    useful = 0
    for row, length in enumerate(lengths):
        num_rows = row - start
        width = lengths[start]
        # Rows are added for all ranks together, because each rank processes one row anyway.
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
    """Sequences as nodes; a node is a token in the context of all previous ones. int64 tensors.

    Example: the sequences 5 6 7 and 5 6 8 have the nodes 5, 6, 7 and 8: `ids` is [5, 6, 7, 8],
    `positions` [0, 1, 2, 2], and the one block [[0, 1, 2], [0, 1, 3]].
    """

    ids: torch.Tensor
    """[nodes] token id of each node."""
    positions: torch.Tensor
    """[nodes] number of tokens before each node."""
    blocks: tuple[torch.Tensor, ...]
    """[rows, tokens] each: nodes of the sequences that are not a prefix of another one.

    Rows are padded on the right with arbitrary nodes. The sequences of a block have about the same
    length.
    """
    homes: torch.Tensor
    """[nodes] position of each node in the concatenation of the flattened blocks."""
    predicting: torch.Tensor
    """[replies] node whose output predicts each reply token, row by row of the tree's batch."""
    num_predicting: int
    """Number of distinct nodes among them."""


def prefix_tree(ids: torch.Tensor, mask: torch.Tensor) -> PrefixTree:
    """Return the tree of a batch, without tokens that are not followed by a reply token.

    Args:
        ids: [rows, tokens], padded on the right.
        mask: [rows, tokens - 1], True if the token at the next position belongs to a reply.
    """
    tokens = ids.cpu().numpy()
    marks = mask.cpu().numpy()
    used_lengths = [_used_length(row_marks) for row_marks in marks]
    used_tokens = []
    for row_tokens, length in zip(tokens, used_lengths, strict=True):
        used_tokens.append(row_tokens[:length])
    order = PrefixOrder(used_tokens)

    # Sequence by sequence, in an order in which neighbors share the longest prefixes: a new node
    # for each token that is not in the prefix shared with the previous sequence.
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
    """Return how many of a row's tokens are followed by a reply token; at least one."""
    if not marks.any():
        return 1
    last_mark = int(marks.nonzero()[0][-1])
    return last_mark + 1


def _blocks(
    nodes: np.ndarray, complete: list[tuple[int, int]], num_nodes: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the nodes of complete sequences in blocks, and each node's position in them.

    Args:
        nodes: [rows, tokens] nodes of all sequences.
        complete: Length and row of each sequence that is not a prefix of another, longest first.
        num_nodes: Number of nodes of the tree.
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
    """Sequences of int64 in an order that puts those with a shared prefix next to each other."""

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        """Sort the sequences; at least one is required."""
        keys = [sequence.tobytes() for sequence in sequences]
        self.order = sorted(range(len(keys)), key=keys.__getitem__)
        """Index of each sequence, in this order."""
        ordered = [sequences[number] for number in self.order]
        self.lengths = [len(sequence) for sequence in ordered]
        """Length of each sequence, in this order."""
        self.shared = [0]
        """Length of the prefix that each sequence shares with the previous one."""
        self.ends: list[bool] = []
        """Whether each sequence is not a prefix of the next one."""
        for sequence, following in pairwise(ordered):
            num_common = _num_common(sequence, following)
            self.shared.append(num_common)
            self.ends.append(num_common < len(sequence))
        self.ends.append(self.lengths[-1] > 0)
        self._num_new = np.cumsum([0, *np.subtract(self.lengths, self.shared)])
        self._num_ends = np.cumsum([0, *self.ends])

    def weight(self, start: int, end: int) -> float:
        """Return the memory of consecutive sequences, in tokens of sequences that share nothing.

        Args:
            start: Position of the first sequence in this order.
            end: Position after the last sequence.
        """
        if start == end:
            return 0.0
        num_nodes = self._num_new[end] - self._num_new[start] + self.shared[start]
        # The last sequence always counts as complete.
        num_rows = self._num_ends[end - 1] - self._num_ends[start] + 1
        attention = num_rows * max(self.lengths[start:end])
        return float((_ATTENTION_TOKENS * num_nodes + attention) / (_ATTENTION_TOKENS + 1))

    def heaviest_share(self, span: tuple[int, int], ranks: int) -> float:
        """Return the largest weight of any rank's share of a span, the same on every rank.

        Args:
            span: Span of sequences in this order.
            ranks: Number of trainer processes.
        """
        weights = []
        for rank in range(ranks):
            start, end = share_of(span, rank, ranks)
            weights.append(self.weight(start, end))
        return max(weights)

    def cut(self, limit: int, ranks: int) -> list[tuple[int, int]]:
        """Return spans in which no rank's share exceeds a limit.

        The spans depend only on the sequences, so that all ranks compute the same ones.

        Args:
            limit: Largest weight of a share, unless it has only one sequence.
            ranks: Number of trainer processes.
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
    """Return a rank's share of a span: consecutive sequences, which share the longest prefixes.

    Args:
        span: Span of sequences in a `PrefixOrder`.
        rank: Rank of the process.
        ranks: Number of trainer processes.
    """
    start, end = span
    length = end - start
    share_start = start + length * rank // ranks
    share_end = start + length * (rank + 1) // ranks
    return share_start, share_end


def _num_common(sequence: np.ndarray, other: np.ndarray) -> int:
    """Return the length of two sequences' common prefix."""
    length = min(len(sequence), len(other))
    differing = np.flatnonzero(sequence[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
