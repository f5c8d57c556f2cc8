"""The check that compares sampler and trainer."""

import math

import pytest
import torch

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.mismatch import check_mismatch


def _check(shift: float, tolerance: float = 0.01) -> float:
    """Compare two sampled tokens, and one of padding that is always far off."""
    sampler = torch.tensor([[-0.5, -1.0, -9.0]])
    trainer = torch.tensor([[-0.5 + shift, -1.0 + shift, 4.0]])
    mask = torch.tensor([[True, True, False]])
    return check_mismatch("player_1", 3, trainer, sampler, mask, tolerance=tolerance)


def test_a_difference_up_to_the_tolerance_is_reported_and_padding_is_ignored() -> None:
    assert _check(0.0) == 0.0
    assert _check(0.005) == pytest.approx(0.005, abs=1e-6)
    nothing = torch.zeros((1, 1), dtype=torch.bool)
    assert check_mismatch("player_0", 0, torch.ones(1, 1), torch.zeros(1, 1), nothing, tolerance=0.01) == 0.0


def test_a_difference_above_the_tolerance_stops_with_both_numbers() -> None:
    with pytest.raises(
        ParityError, match=r"player_1@3: .*differ by 0\.02 .*HANABI_PARITY_TOLERANCE=0\.01.*-0\.7300.*-0\.7500"
    ):
        _check(0.02)


def test_a_trainer_that_is_not_a_number_is_left_to_its_gradient_and_a_sampler_that_is_not_stops() -> None:
    assert math.isnan(_check(float("nan")))
    ones = torch.ones((1, 2), dtype=torch.bool)
    with pytest.raises(ParityError, match="nan"):
        check_mismatch("player_0", 0, torch.zeros(1, 2), torch.tensor([[0.0, math.nan]]), ones, tolerance=0.01)
