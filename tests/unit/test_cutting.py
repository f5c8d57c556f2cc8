"""Where a player's sequences are cut into micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.training.model.cutting import USEFUL_SHARE, cut_by_rows, cut_by_tokens


def test_rows_are_shared_out_evenly() -> None:
    assert cut_by_rows(5, 2) == [(0, 2), (2, 5)]
    assert cut_by_rows(1, 3) == [(0, 0), (0, 0), (0, 1)]
    assert cut_by_rows(0, 2) == [(0, 0), (0, 0)]


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
        # Much shorter rows start a micro-batch of their own, where this one is large enough by then.
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
        # Below the share only where the micro-batch is small, or by rows that were taken together, one for each rank.
        assert sum(held) >= USEFUL_SHARE * (len(held) - ranks + 1) * held[0] or padded < limit / 8 + held[0]
