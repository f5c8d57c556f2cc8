"""Sequences as a tree: every token is found again, none is there twice, and the cut keeps its limit on every rank."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.training.model.prefix_tree import PrefixOrder, PrefixTree, prefix_tree, share_of

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
        (block, row, column) for block in tree.blocks for row in range(len(block)) for column in range(block.shape[1])
    ]
    found = []
    for node, home in enumerate(tree.homes.tolist()):
        block, row, column = places[home]
        path = block[row, : column + 1]
        assert path[-1] == node and tree.positions[path].tolist() == list(range(column + 1))
        found.append(tuple(tree.ids[path].tolist()))
    return found


@given(SEQUENCES, st.integers(0, 3))
def test_nodes_are_the_different_beginnings_up_to_the_last_reply(sequences: list[list[int]], seed: int) -> None:
    ids, mask = _batch(sequences, seed)
    tree = prefix_tree(ids, mask)
    needed = [max([int(place) + 1 for place in marked.nonzero()] or [1]) for marked in mask]
    expected = {
        tuple(sequence[: end + 1]) for sequence, length in zip(sequences, needed, strict=True) for end in range(length)
    }
    found = _prefixes(tree)
    assert len(found) == len(set(found)) and set(found) == expected
    predicted_from = [tuple(ids[row, : column + 1].tolist()) for row, column in mask.nonzero().tolist()]
    assert [found[node] for node in tree.predicting.tolist()] == predicted_from


def test_a_sequence_that_another_one_begins_with_has_no_row_of_its_own() -> None:
    ids, mask = _batch([[1, 2, 3, 1], [1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3], [2, 2, 2, 2]])
    tree = prefix_tree(ids, torch.ones_like(mask) & (ids[:, 1:] > 0))
    assert sum(len(block) for block in tree.blocks) == 2
    assert len(tree.ids) == 5 + 3
    assert len(tree.predicting) == 3 + 5 + 5 + 3


def test_rows_without_a_reply_are_one_token_and_predict_nothing() -> None:
    tree = prefix_tree(torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 3, dtype=torch.bool))
    assert (tree.ids.tolist(), tree.homes.tolist(), tree.predicting.tolist()) == ([0], [0], [])


@given(SEQUENCES, st.integers(1, 40), st.integers(1, 3))
def test_every_sequence_is_in_one_share_and_no_share_is_above_the_limit(
    sequences: list[list[int]], limit: int, ranks: int
) -> None:
    order = PrefixOrder([np.array(sequence, dtype=np.int64) for sequence in sequences])
    shares = [share_of(span, rank, ranks) for span in order.cut(limit, ranks) for rank in range(ranks)]
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
            tree = prefix_tree(ids, torch.arange(1, ids.shape[1]) <= torch.tensor([len(one) for one in part])[:, None])
            rows = sum(len(block) for block in tree.blocks)
            expected = (4 * len(tree.ids) + rows * max(map(len, part))) / 5
            assert order.weight(start, end) == pytest.approx(expected)


def test_alike_sequences_weigh_little_and_different_ones_as_much_as_padded() -> None:
    alike = PrefixOrder([np.arange(10, dtype=np.int64)] * 100)
    assert alike.weight(0, 100) == 10 and alike.cut(20, 1) == [(0, 100)]
    different = PrefixOrder([np.full(10, number, dtype=np.int64) for number in range(100)])
    assert different.weight(0, 100) == 1000 and len(different.cut(200, 1)) == 5
