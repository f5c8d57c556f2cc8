"""Cuts keep their limit on every rank, and a tree of sequences has every token once."""

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


def padded_ids(sequences: list[list[int]]) -> torch.Tensor:
    """Return [rows, tokens], filled with 0 on the right."""
    rows = [torch.tensor(sequence) for sequence in sequences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def random_mask(sequences: list[list[int]], seed: int) -> torch.Tensor:
    """Return a mask that marks about half of the tokens but the first of each sequence."""
    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, sequences))
    mask = torch.zeros(len(sequences), width - 1, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        num_predicted = len(sequence) - 1
        mask[row, :num_predicted] = torch.rand(num_predicted, generator=generator) < 0.5
    return mask


def order_of(sequences: list[list[int]]) -> PrefixOrder:
    return PrefixOrder([np.array(sequence, dtype=np.int64) for sequence in sequences])


def prefixes_of_nodes(tree: PrefixTree) -> list[tuple[int, ...]]:
    """Return per node the tokens up to it, read from where it stands in the blocks."""
    places = []
    for block in tree.blocks:
        for row in range(len(block)):
            for column in range(block.shape[1]):
                places.append((block, row, column))
    prefixes = []
    for node, home in enumerate(tree.homes.tolist()):
        block, row, column = places[home]
        path = block[row, : column + 1]
        assert path[-1] == node
        assert tree.positions[path].tolist() == list(range(column + 1))
        prefixes.append(tuple(tree.ids[path].tolist()))
    return prefixes


@given(SEQUENCES, st.integers(0, 3))
def test_nodes_are_the_different_beginnings_up_to_the_last_reply(
    sequences: list[list[int]], seed: int
) -> None:
    ids = padded_ids(sequences)
    mask = random_mask(sequences, seed)
    tree = prefix_tree(ids, mask)
    expected = set()
    for sequence, marks in zip(sequences, mask, strict=True):
        marked = marks.nonzero().flatten().tolist()
        num_needed = max([place + 1 for place in marked], default=1)
        for length in range(1, num_needed + 1):
            expected.add(tuple(sequence[:length]))
    prefixes = prefixes_of_nodes(tree)
    assert len(prefixes) == len(set(prefixes))
    assert set(prefixes) == expected
    predicted_from = []
    for row, column in mask.nonzero().tolist():
        predicted_from.append(tuple(ids[row, : column + 1].tolist()))
    assert [prefixes[node] for node in tree.predicting.tolist()] == predicted_from


def test_a_sequence_that_another_one_begins_with_has_no_row_of_its_own() -> None:
    ids = padded_ids([[1, 2, 3, 1], [1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3], [2, 2, 2, 2]])
    every_token = ids[:, 1:] > 0
    tree = prefix_tree(ids, every_token)
    assert sum(len(block) for block in tree.blocks) == 2
    assert len(tree.ids) == 5 + 3
    assert len(tree.predicting) == 3 + 5 + 5 + 3


def test_the_tree_of_a_fork() -> None:
    ids = torch.tensor([[5, 6, 7, 1], [5, 6, 8, 1]])
    every_token = torch.ones(2, 3, dtype=torch.bool)
    tree = prefix_tree(ids, every_token)
    assert tree.ids.tolist() == [5, 6, 7, 8]
    assert tree.positions.tolist() == [0, 1, 2, 2]
    # The longest first; of equals the last.
    [block] = tree.blocks
    assert block.tolist() == [[0, 1, 3], [0, 1, 2]]
    assert tree.predicting.tolist() == [0, 1, 2, 0, 1, 3]


@given(SEQUENCES, st.integers(1, 40), st.integers(1, 3))
def test_every_sequence_is_in_one_share_and_no_share_is_above_the_limit(
    sequences: list[list[int]], limit: int, ranks: int
) -> None:
    order = order_of(sequences)
    numbers = []
    for span in order.cut(limit, ranks):
        for rank in range(ranks):
            start, end = share_of(span, rank, ranks)
            numbers.extend(order.order[start:end])
            assert end - start <= 1 or order.weight(start, end) <= limit
    assert sorted(numbers) == list(range(len(sequences)))


@given(SEQUENCES)
def test_the_weight_is_that_of_the_tree(sequences: list[list[int]]) -> None:
    order = order_of(sequences)
    for start in range(len(sequences)):
        for end in range(start + 1, len(sequences) + 1):
            part = [sequences[number] for number in order.order[start:end]]
            # The last token of a sequence is predicted and predicts nothing, so one is added.
            ids = padded_ids([[*sequence, 1] for sequence in part])
            lengths = torch.tensor([len(sequence) for sequence in part])
            tree = prefix_tree(ids, torch.arange(1, ids.shape[1]) <= lengths[:, None])
            num_rows = sum(len(block) for block in tree.blocks)
            expected = (4 * len(tree.ids) + num_rows * max(map(len, part))) / 5
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


DESCENDING_LENGTHS = st.lists(st.integers(1, 300), max_size=80).map(
    lambda lengths: sorted(lengths, reverse=True)
)


@given(DESCENDING_LENGTHS, st.integers(1, 1000), st.integers(1, 8))
def test_every_row_is_in_one_span_and_no_process_holds_more_than_the_limit(
    lengths: list[int], limit: int, ranks: int
) -> None:
    spans = cut_by_tokens(lengths, limit, ranks)
    rows: list[int] = []
    for start, end in spans:
        rows.extend(range(start, end))
    assert rows == list(range(len(lengths)))
    if not lengths:
        assert spans == [(0, 0)]
        return
    for start, end in spans:
        assert start < end
        span_lengths = lengths[start:end]
        width = span_lengths[0]
        for rank in range(ranks):
            rank_lengths = span_lengths[rank::ranks]
            num_rows = len(rank_lengths)
            assert num_rows <= 1 or num_rows * rank_lengths[0] <= limit
        rows_of_rank = -(-len(span_lengths) // ranks)
        padded = rows_of_rank * width
        # Below the share only where the micro-batch is small, or by rows that were taken together,
        # one for each rank.
        num_rows_before = len(span_lengths) - ranks + 1
        is_useful = sum(span_lengths) >= USEFUL_SHARE * num_rows_before * width
        is_small = padded < limit / 8 + width
        assert is_useful or is_small
