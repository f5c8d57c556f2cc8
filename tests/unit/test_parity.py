"""The gate that compares sampler and trainer."""

import math

import pytest
import torch

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.mismatch import MismatchCheck


def _check(gate: MismatchCheck, shift: float) -> float:
    sampler = torch.tensor([[-0.5, -1.0, -9.0]])
    mask = torch.tensor([[True, True, False]])
    return gate.check("player_1", 3, sampler + shift, sampler, mask)


def test_equal_logprobs_pass_and_padding_is_ignored() -> None:
    gate = MismatchCheck(1e-3)
    sampler, trainer = torch.tensor([[-0.5, -9.0]]), torch.tensor([[-0.5, 4.0]])
    assert gate.check("player_0", 0, trainer, sampler, torch.tensor([[True, False]])) == 0.0


def test_a_difference_above_the_tolerance_stops_with_both_numbers() -> None:
    with pytest.raises(
        ParityError, match=r"player_1@3: .*differ by 0\.02 .*HANABI_PARITY_TOLERANCE=0\.01.*-0\.7300.*-0\.7500"
    ):
        _check(MismatchCheck(0.01), 0.02)


def test_a_difference_below_the_tolerance_is_reported() -> None:
    assert _check(MismatchCheck(0.01), 0.005) == pytest.approx(0.005, abs=1e-6)


def test_a_trainer_that_is_not_a_number_is_left_to_its_gradient_and_a_sampler_that_is_not_stops() -> None:
    assert math.isnan(_check(MismatchCheck(0.01), float("nan")))
    ones = torch.ones((1, 2), dtype=torch.bool)
    with pytest.raises(ParityError, match="nan"):
        MismatchCheck(0.01).check("player_0", 0, torch.zeros(1, 2), torch.tensor([[0.0, math.nan]]), ones)


def test_a_batch_without_sampled_tokens_says_nothing() -> None:
    gate = MismatchCheck(0.01)
    nothing = torch.zeros((1, 1), dtype=torch.bool)
    assert gate.check("player_0", 0, torch.ones(1, 1), torch.zeros(1, 1), nothing) == 0.0
