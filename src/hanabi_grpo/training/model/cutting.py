"""How a player's sequences are cut into micro-batches."""

from collections.abc import Sequence

USEFUL_SHARE = 0.9
"""Below this share of tokens that are no padding a micro-batch takes no further, shorter sequence."""
_SMALLEST = 8
"""One with less than the limit divided by this goes on all the same: each micro-batch has a fixed cost as well."""


def cut_by_rows(num_rows: int, parts: int) -> list[tuple[int, int]]:
    """Return `parts` spans of equally many rows, or one fewer.

    Example:
        cut_by_rows(5, 2) == [(0, 2), (2, 5)]
    """
    return [(num_rows * number // parts, num_rows * (number + 1) // parts) for number in range(parts)]


def cut_by_tokens(lengths: Sequence[int], limit: int, ranks: int) -> list[tuple[int, int]]:
    """Return spans of rows that hold at most `limit` tokens on each rank, padding included; at least one span.

    Every rank takes every `ranks`-th row of a span; a row that is longer makes a span of its own. The number of spans
    depends on the lengths alone, the longest first, so that all ranks find the same.

    Example:
        cut_by_tokens([6, 6, 3, 3], 12, 1) == [(0, 2), (2, 4)]
    """
    spans = []
    start = useful = 0
    for row, length in enumerate(lengths):
        held, width = row - start, lengths[start]
        shorter = useful + length < USEFUL_SHARE * width * (held + 1)
        enough = _padded(held, width, ranks) * _SMALLEST >= limit
        # The ranks' first rows are taken together: each of them works on one anyway.
        if held % ranks == 0 and held and (_padded(held + 1, width, ranks) > limit or (shorter and enough)):
            spans.append((start, row))
            start, useful = row, 0
        useful += length
    return [*spans, (start, len(lengths))]


def _padded(num_rows: int, width: int, ranks: int) -> int:
    return -(-num_rows // ranks) * width
