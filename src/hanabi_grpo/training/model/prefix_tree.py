"""How a player's sequences are cut into micro-batches, and sequences as a tree, in which a shared
prefix is there once.

The games of a group have one task, so a player's sequences share a prefix, for some turns or to the
end. Behind equal tokens a causal model computes equal values, and in the gradient of a sum it needs
their sum alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

USEFUL_SHARE = 0.9
"""Below this share of tokens that are no padding a micro-batch takes no further, shorter
sequence.
"""
_SMALLEST = 8
"""One with less than the limit divided by this goes on all the same: each micro-batch has a fixed
cost as well.
"""
_SPARED = 4
"""Tokens that only attention sees, and that weigh as much in memory as one that all of a layer
sees; at most, for attention holds a query, a key, a value and an output of each, of all that a
layer keeps for its gradient."""


def cut_by_rows(num_rows: int, parts: int) -> list[tuple[int, int]]:
    """Return `parts` spans of equally many rows, or one fewer."""
    return [
        (num_rows * number // parts, num_rows * (number + 1) // parts) for number in range(parts)
    ]


def cut_by_tokens(lengths: Sequence[int], limit: int, ranks: int) -> list[tuple[int, int]]:
    """Return spans of rows that hold at most `limit` tokens on each rank, padding included; at
    least one span.

    Every rank takes every `ranks`-th row of a span; a row that is longer makes a span of its own.
    The number of spans depends on the lengths alone, the longest first, so that all ranks find the
    same."""

    def padded(num_rows: int) -> int:
        return -(-num_rows // ranks) * width

    spans = []
    start = useful = 0
    for row, length in enumerate(lengths):
        held, width = row - start, lengths[start]
        shorter = useful + length < USEFUL_SHARE * width * (held + 1)
        enough = padded(held) * _SMALLEST >= limit
        # The ranks' first rows are taken together: each of them works on one anyway.
        if held % ranks == 0 and held and (padded(held + 1) > limit or (shorter and enough)):
            spans.append((start, row))
            start, useful = row, 0
        useful += length
    return [*spans, (start, len(lengths))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """Sequences as nodes; a node is a token behind all tokens before it. Tensors of int64."""

    ids: torch.Tensor
    """[nodes] token of each."""
    positions: torch.Tensor
    """[nodes] tokens before it."""
    blocks: tuple[torch.Tensor, ...]
    """[rows, tokens] each, nodes of the sequences that no other one begins with, filled on the
    right with any node; in each sequences of about the same length."""
    homes: torch.Tensor
    """[nodes] where each node stands in the flattened blocks, one after the other."""
    predicting: torch.Tensor
    """[replies] node whose output predicts a reply token, row by row of the batch that the tree was
    made of.
    """


def prefix_tree(ids: torch.Tensor, mask: torch.Tensor) -> PrefixTree:
    """Return the tree of a batch, see `forward.reply_logps`; tokens that no reply token comes after
    are left out.
    """
    tokens, marks = ids.cpu().numpy(), mask.cpu().numpy()
    lengths = [max(int(marked.nonzero()[0][-1]) + 1, 1) if marked.any() else 1 for marked in marks]
    order = PrefixOrder([row[:length] for row, length in zip(tokens, lengths, strict=True)])
    width = max(lengths)
    nodes = np.zeros((len(tokens), width), dtype=np.int64)
    found, depths = [], []
    before, count = nodes[0], 0
    for row, length, shared in zip(order.order, order.lengths, order.shared, strict=True):
        nodes[row] = before
        nodes[row, shared:length] = np.arange(count, count + length - shared)
        found.append(tokens[row, shared:length])
        depths.append(np.arange(shared, length))
        before, count = nodes[row], count + length - shared
    whole = [
        (length, row)
        for row, length, ends in zip(order.order, order.lengths, order.ends, strict=True)
        if ends
    ]
    blocks, homes = _blocks(nodes, sorted(whole, reverse=True), count)

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(ids.device)

    return PrefixTree(
        ids=column(np.concatenate(found)),
        positions=column(np.concatenate(depths)),
        blocks=tuple(column(block) for block in blocks),
        homes=column(homes),
        predicting=column(nodes[marks[:, :width].nonzero()]),
    )


def _blocks(
    nodes: np.ndarray, whole: list[tuple[int, int]], num_nodes: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the nodes of `whole`, lengths and rows, in blocks, and where each node stands."""
    lengths = [length for length, _ in whole]
    blocks, homes, offset = [], np.zeros(num_nodes, dtype=np.int64), 0
    for start, end in cut_by_tokens(lengths, len(lengths) * lengths[0], 1):
        width = lengths[start]
        blocks.append(nodes[[row for _, row in whole[start:end]], :width])
        for place, (length, row) in enumerate(whole[start:end]):
            homes[nodes[row, :length]] = offset + place * width + np.arange(length)
        offset += blocks[-1].size
    return blocks, homes


class PrefixOrder:
    """Sequences of int64 in an order in which those that share a prefix stand together; at least
    one.
    """

    def __init__(self, sequences: Sequence[np.ndarray]) -> None:
        keys = [sequence.tobytes() for sequence in sequences]
        self.order = sorted(range(len(keys)), key=keys.__getitem__)
        ordered = [sequences[number] for number in self.order]
        self.lengths = [len(sequence) for sequence in ordered]
        # First tokens that each has in common with the one before it, and whether the next one does
        # not begin with it.
        self.shared = [
            _common(one, other)
            for one, other in zip([ordered[0][:0], *ordered], ordered, strict=False)
        ]
        self.ends = [
            shared < length
            for shared, length in zip([*self.shared[1:], 0], self.lengths, strict=True)
        ]
        self._new = np.cumsum([0, *np.subtract(self.lengths, self.shared)])
        self._ends = np.cumsum([0, *self.ends])

    def weight(self, start: int, end: int) -> float:
        """Return what sequences `start` to `end` take together, in tokens of sequences that share
        nothing.
        """
        if start == end:
            return 0.0
        nodes = self._new[end] - self._new[start] + self.shared[start]
        # The last one ends here whatever comes after it.
        rows = self._ends[end - 1] - self._ends[start] + 1
        return float((_SPARED * nodes + rows * max(self.lengths[start:end])) / (_SPARED + 1))

    def cut(self, limit: int, ranks: int) -> list[tuple[int, int]]:
        """Return spans of which no rank's share weighs more than `limit`, or holds more than one
        sequence.

        The number of spans depends on the sequences alone, so that all ranks find the same.
        """
        spans, start = [], 0
        for end in range(1, len(self.order) + 1):
            shares = [share_of((start, end), rank, ranks) for rank in range(ranks)]
            if end - start > ranks and max(self.weight(*share) for share in shares) > limit:
                spans.append((start, end - 1))
                start = end - 1
        return [*spans, (start, len(self.order))]


def share_of(span: tuple[int, int], rank: int, ranks: int) -> tuple[int, int]:
    """Return a rank's part of a span of sequences: neighbours, which share the most."""
    start, end = span
    return start + (end - start) * rank // ranks, start + (end - start) * (rank + 1) // ranks


def _common(one: np.ndarray, other: np.ndarray) -> int:
    short = min(len(one), len(other))
    different = np.flatnonzero(one[:short] != other[:short])
    return int(different[0]) if len(different) else short
