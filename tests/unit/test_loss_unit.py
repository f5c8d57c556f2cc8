"""What has equal weight in the loss, against means that are taken directly."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hanabi_grpo.training.advantages.estimators import rloo
from hanabi_grpo.training.advantages.step import LossUnit, token_weights
from hanabi_grpo.training.batching import plan_batches, sequences_of
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

OWN = ("player_0@0", "player_1@0")


def _game(number: int, score: float, *lengths: int) -> Episode:
    turns = []
    for place, length in enumerate(lengths):
        ids = (3 + (number + place + one) % 9 for one in range(length))
        rewards = {"score": score if place == 0 else 0.0}
        turns.append(made_turn(0, *ids, rewards=rewards, prompt_ids=(1, 2)))
    return made_episode(*turns, game=number)


GROUP = [_game(0, 2.0, 1, 4), _game(1, 0.0, 3), _game(2, 1.0, 2, 0, 2, 2), _game(3, -1.0)]


def test_weights_worked_out_by_hand() -> None:
    turns = [[1, 4], [3], [0], []]
    assert token_weights(turns, "token") == [[1.0, 1.0], [1.0], [1.0], []]
    # 8 tokens in 3 turns: 8/3 for the turn of one token, 8/12, 8/9.
    assert token_weights(turns, "turn") == [
        [pytest.approx(8 / 3), pytest.approx(8 / 12)],
        [pytest.approx(8 / 9)],
        [0.0],
        [],
    ]
    # 8 tokens in 2 sequences of 5 and 3: 8/10, 8/6.
    assert token_weights(turns, "sequence") == [[0.8, 0.8], [pytest.approx(8 / 6)], [0.0], []]
    assert token_weights([], "turn") == [] and token_weights([[0]], "sequence") == [[0.0]]


@settings(deadline=None)
@given(
    turns=st.lists(st.lists(st.integers(0, 600), max_size=5), max_size=5),
    unit=st.sampled_from(("token", "turn", "sequence")),
)
def test_the_weights_of_all_tokens_sum_to_their_number(turns: list[list[int]], unit: LossUnit) -> None:
    weights = token_weights(turns, unit)
    total = sum(
        one * many for row, counts in zip(weights, turns, strict=True) for one, many in zip(row, counts, strict=True)
    )
    assert total == pytest.approx(sum(map(sum, turns)))


MEANS: dict[LossUnit, Callable[[list[list[torch.Tensor]]], torch.Tensor]] = {
    "token": lambda turns: torch.cat([one for row in turns for one in row]).mean(),
    "turn": lambda turns: torch.stack([one.mean() for row in turns for one in row if len(one)]).mean(),
    "sequence": lambda turns: torch.stack([torch.cat(row).mean() for row in turns if row]).mean(),
}


@pytest.mark.parametrize("unit", MEANS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_loss_over_all_micro_batches_and_its_gradient_are_the_wanted_mean(
    unit: LossUnit, micro_batches: int
) -> None:
    torch.manual_seed(0)
    table = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)
    # The policy has moved since the sampling, so that clipping acts on some tokens.
    old = (table + torch.randn_like(table)).detach()

    def token_losses(before: torch.Tensor, after: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        logps = torch.log_softmax(table[before], -1).gather(-1, after[..., None])[..., 0]
        olds = torch.log_softmax(old[before], -1).gather(-1, after[..., None])[..., 0]
        ratio = torch.exp(logps - olds)
        return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)

    batches = plan_batches(
        [GROUP],
        own=OWN,
        micro_batches_per_player=micro_batches,
        rank=0,
        world_size=1,
        estimator=rloo,
        unit=unit,
        pad_id=0,
        device=torch.device("cpu"),
    )[:micro_batches]
    loss = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        one, ids = batch["grpo_batch"], batch["model_inputs"]["input_ids"]
        losses = token_losses(ids[:, :-1], ids[:, 1:], one.advantages.double())
        loss = loss + (losses * one.completion_mask).sum() / one.num_items_in_batch
    (gradient,) = torch.autograd.grad(loss, table)

    expected_turns: list[list[torch.Tensor]] = []
    for episode, values in zip(GROUP, rloo(GROUP, 0), strict=True):
        row: list[torch.Tensor] = []
        for one, value in zip(episode.turns, values, strict=True):
            ids = torch.tensor([2, *one.reply_ids])
            row.append(token_losses(ids[:-1], ids[1:], torch.full((len(one.reply_ids),), value, dtype=torch.float64)))
        expected_turns.append(row)
    expected = MEANS[unit](expected_turns)
    (expected_gradient,) = torch.autograd.grad(expected, table)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-8)
    assert gradient.any()


def test_tokens_as_the_unit_leave_advantages_bit_identical() -> None:
    rows = sequences_of([GROUP], 0, rloo, OWN)
    assert rows == sequences_of([GROUP], 0, rloo, OWN, unit="token")
    values = [value for game in rloo(GROUP, 0) for value in game[:1]]
    assert [max(row.advantages, key=abs) for row in rows] == values[:3]
    assert rows != sequences_of([GROUP], 0, rloo, OWN, unit="turn")
