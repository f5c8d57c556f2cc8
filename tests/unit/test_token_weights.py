"""HANABI_LOSS_UNIT: the weight of each token."""

import pytest

from hanabi_grpo.training.token_weights import token_weights

TURNS = [[1, 4], [3], [0], []]
"""Four sequences with 8 reply tokens in 3 turns that have any."""


def test_tokens_weigh_the_same() -> None:
    assert token_weights(TURNS, "token") == [[1.0, 1.0], [1.0], [1.0], []]


def test_turns_weigh_the_same() -> None:
    # 8 tokens in 3 turns: 8/3 for the turn of one token, 8/12, 8/9.
    assert token_weights(TURNS, "turn") == [
        [pytest.approx(8 / 3), pytest.approx(8 / 12)],
        [pytest.approx(8 / 9)],
        [0.0],
        [],
    ]


def test_sequences_weigh_the_same() -> None:
    # 8 tokens in 2 sequences of 5 and 3: 8/10, 8/6.
    assert token_weights(TURNS, "sequence") == [
        [0.8, 0.8],
        [pytest.approx(8 / 6)],
        [0.0],
        [],
    ]
