"""The rows of the training path: what both arms compute, and what is counted as padding."""

import asyncio

import pytest

from bench.stand_in import compact_config
from bench.training_rows import (
    made_rows,
    sequences_against_turns,
    small_model,
    turn_rows,
    useful_share_of_bots,
)
from hanabi_grpo.training.batching import TokenRow


def test_each_reply_becomes_a_sequence_with_all_that_came_before_it() -> None:
    said = [False, True, True, False, True]
    row = TokenRow(ids=[1, 2, 3, 4, 5], mask=said, logprobs=[0, -1, -2, 0, -3], advantages=[0, 7, 7, 0, 9])
    first, second = turn_rows(row)
    assert (first.ids, first.mask) == ([1, 2, 3], [False, True, True])
    assert (first.logprobs, first.advantages) == ([0, -1, -2], [0, 7, 7])
    assert (second.ids, second.mask) == ([1, 2, 3, 4, 5], [False, False, False, False, True])
    assert (second.logprobs, second.advantages) == ([0, 0, 0, 0, -3], [0, 0, 0, 0, 9])
    assert turn_rows(TokenRow(ids=[1], mask=[False], logprobs=[0.0], advantages=[0.0])) == []


def test_conversations_give_the_gradient_of_their_turns_and_read_fewer_tokens() -> None:
    rows = made_rows(num_games=3, turns=4, prompt=6, reply=2, seed=0)
    model = small_model()
    found = asyncio.run(sequences_against_turns(model, rows, limit=64, pairs=1))
    assert found.cosine > 0.9999
    assert found.largest_difference < 1e-3
    assert found.tokens == (3 * 32, 3 * (8 + 16 + 24 + 32))
    assert [(pair.first.amount, pair.second.amount) for pair in found.pairs] == [(24, 24)]


@pytest.mark.parametrize("limit", [300, 2048])
def test_of_a_steps_micro_batches_hardly_anything_is_padding(limit: int) -> None:
    config = compact_config("laptop")
    share = asyncio.run(useful_share_of_bots(config, num_games=32, limit=limit, seed=0))
    whole = asyncio.run(useful_share_of_bots(config, num_games=32, limit=10**9, seed=0))
    assert whole < share <= 1
    assert share >= 0.9
