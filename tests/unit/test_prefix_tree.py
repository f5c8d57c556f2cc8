"""Cuts keep their limit on every rank; in a tree of sequences every token is found again, and none
is there twice.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.training.model.prefix_tree import (
    USEFUL_SHARE,
    PrefixOrder,
    PrefixTree,
    cut_by_rows,
    cut_by_tokens,
    prefix_tree,
    share_of,
)

SEQUENCES = st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=9), min_size=1, max_size=8)


def _batch(sequences: list[list[int]], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids padded with 0, and a mask that marks about half of the tokens but the first."""
    ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    mask = torch.zeros(ids.shape[0], ids.shape[1] - 1, dtype=torch.bool)
    drawn = torch.Generator().manual_seed(seed)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence) - 1] = torch.rand(len(sequence) - 1, generator=drawn) < 0.5
    return ids, mask


def _prefixes(tree: PrefixTree) -> list[tuple[int, ...]]:
    """Per node the tokens up to it, read from where it stands in the blocks."""
    places = [
        (block, row, column)
        for block in tree.blocks
        for row in range(len(block))
        for column in range(block.shape[1])
    ]
    found = []
    for node, home in enumerate(tree.homes.tolist()):
        block, row, column = places[home]
        path = block[row, : column + 1]
        assert path[-1] == node and tree.positions[path].tolist() == list(range(column + 1))
        found.append(tuple(tree.ids[path].tolist()))
    return found


@given(SEQUENCES, st.integers(0, 3))
def test_nodes_are_the_different_beginnings_up_to_the_last_reply(
    sequences: list[list[int]], seed: int
) -> None:
    ids, mask = _batch(sequences, seed)
    tree = prefix_tree(ids, mask)
    needed = [max([int(place) + 1 for place in marked.nonzero()] or [1]) for marked in mask]
    expected = {
        tuple(sequence[: end + 1])
        for sequence, length in zip(sequences, needed, strict=True)
        for end in range(length)
    }
    found = _prefixes(tree)
    assert len(found) == len(set(found)) and set(found) == expected
    predicted_from = [
        tuple(ids[row, : column + 1].tolist()) for row, column in mask.nonzero().tolist()
    ]
    assert [found[node] for node in tree.predicting.tolist()] == predicted_from


def test_a_sequence_that_another_one_begins_with_has_no_row_of_its_own() -> None:
    ids, mask = _batch([[1, 2, 3, 1], [1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3], [2, 2, 2, 2]])
    tree = prefix_tree(ids, torch.ones_like(mask) & (ids[:, 1:] > 0))
    assert sum(len(block) for block in tree.blocks) == 2
    assert len(tree.ids) == 5 + 3
    assert len(tree.predicting) == 3 + 5 + 5 + 3


@given(SEQUENCES, st.integers(1, 40), st.integers(1, 3))
def test_every_sequence_is_in_one_share_and_no_share_is_above_the_limit(
    sequences: list[list[int]], limit: int, ranks: int
) -> None:
    order = PrefixOrder([np.array(sequence, dtype=np.int64) for sequence in sequences])
    shares = [
        share_of(span, rank, ranks) for span in order.cut(limit, ranks) for rank in range(ranks)
    ]
    rows = [order.order[row] for start, end in shares for row in range(start, end)]
    assert sorted(rows) == list(range(len(sequences)))
    for start, end in shares:
        assert end - start <= 1 or order.weight(start, end) <= limit


@given(SEQUENCES)
def test_the_weight_is_that_of_the_tree(sequences: list[list[int]]) -> None:
    order = PrefixOrder([np.array(sequence, dtype=np.int64) for sequence in sequences])
    for start in range(len(sequences)):
        for end in range(start + 1, len(sequences) + 1):
            part = [sequences[number] for number in order.order[start:end]]
            ids, _ = _batch([[*sequence, 1] for sequence in part])
            tree = prefix_tree(
                ids,
                torch.arange(1, ids.shape[1]) <= torch.tensor([len(one) for one in part])[:, None],
            )
            rows = sum(len(block) for block in tree.blocks)
            expected = (4 * len(tree.ids) + rows * max(map(len, part))) / 5
            assert order.weight(start, end) == pytest.approx(expected)


def test_rows_are_shared_out_evenly() -> None:
    assert cut_by_rows(5, 2) == [(0, 2), (2, 5)]
    assert cut_by_rows(1, 3) == [(0, 0), (0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("lengths", "limit", "ranks", "expected"),
    [
        ([], 10, 1, [(0, 0)]),
        ([50], 10, 1, [(0, 1)]),
        ([50, 50], 10, 1, [(0, 1), (1, 2)]),
        ([5, 5, 5, 5], 10, 1, [(0, 2), (2, 4)]),
        # Two processes hold 10 tokens each.
        ([5, 5, 5, 5], 10, 2, [(0, 4)]),
        ([50, 50, 5, 5], 10, 2, [(0, 2), (2, 4)]),
        # Padding counts: three rows of width 4 are 12 tokens.
        ([4, 4, 3, 3], 8, 1, [(0, 2), (2, 4)]),
        # Much shorter rows start a micro-batch of their own, where this one is large enough by
        # then.
        ([10, 10, 10, 2, 2], 100, 1, [(0, 3), (3, 5)]),
        ([10, 2, 2, 2], 100, 1, [(0, 2), (2, 4)]),
        ([10, 2, 2, 2], 300, 1, [(0, 4)]),
    ],
)
def test_rows_are_cut_by_the_tokens_that_a_process_holds(
    lengths: list[int], limit: int, ranks: int, expected: list[tuple[int, int]]
) -> None:
    assert cut_by_tokens(lengths, limit, ranks) == expected


@given(
    st.lists(st.integers(1, 300), max_size=80).map(lambda values: sorted(values, reverse=True)),
    st.integers(1, 1000),
    st.integers(1, 8),
)
def test_every_row_is_in_one_span_and_no_process_holds_more_than_the_limit(
    lengths: list[int], limit: int, ranks: int
) -> None:
    spans = cut_by_tokens(lengths, limit, ranks)
    assert [row for start, end in spans for row in range(start, end)] == list(range(len(lengths)))
    assert len(spans) == 1 or all(start < end for start, end in spans)
    for start, end in spans if lengths else []:
        held = lengths[start:end]
        for rank in range(ranks):
            own = held[rank::ranks]
            assert len(own) <= 1 or len(own) * own[0] <= limit
        padded = -(-len(held) // ranks) * held[0]
        # Below the share only where the micro-batch is small, or by rows that were taken together,
        # one for each rank.
        assert (
            sum(held) >= USEFUL_SHARE * (len(held) - ranks + 1) * held[0]
            or padded < limit / 8 + held[0]
        )
