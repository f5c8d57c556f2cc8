"""The check of sampler and trainer; KL and entropy parts of advantages follow the exact gradients of both."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hanabi_grpo.errors import ParityError
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.loss import entropy_part, kl_part, shape_advantages
from hanabi_grpo.training.mismatch import check_mismatch
from hanabi_grpo.types import Episode, player_names
from made_games import made_episode, made_turn

LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([1.0, 0.3, -0.2, 0.0], dtype=torch.float64), -1)


def _expected_step(part: torch.Tensor) -> torch.Tensor:
    """Return E_a[f(a) ∇log π(a)] over all actions, the mean of what the loss does with an advantage f."""
    logits = LOGITS.clone().requires_grad_()
    logps = torch.log_softmax(logits, -1)
    (logps.exp().detach() * part * logps).sum().backward()
    assert logits.grad is not None
    return logits.grad


def _exact(value: str) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    logps = torch.log_softmax(logits, -1)
    kl = (logps.exp() * (logps - REFERENCE)).sum()
    entropy = -(logps.exp() * logps).sum()
    (kl if value == "kl" else entropy).backward()
    assert logits.grad is not None
    return logits.grad


def test_the_parts_follow_the_exact_gradients_of_kl_and_entropy_whatever_the_constant() -> None:
    logps, everywhere = torch.log_softmax(LOGITS, -1), torch.ones(4, dtype=torch.bool)
    step = _expected_step(kl_part(logps, REFERENCE, everywhere, 0.3))
    assert torch.allclose(step, -0.3 * _exact("kl"), atol=1e-12) and step.abs().max() > 0.01
    for mean in (0.0, -1.7):
        step = _expected_step(entropy_part(logps, everywhere, 0.3, mean))
        assert torch.allclose(step, 0.3 * _exact("entropy"), atol=1e-12) and step.abs().max() > 0.01


def _game(logprobs: dict[int, tuple[float, ...]], seats: tuple[str, ...] = ()) -> Episode:
    turns = (made_turn(player, *(1,) * len(values), logprobs=values) for player, values in logprobs.items())
    return made_episode(*turns, seats=seats)


def _batch(player: str, logps: list[list[float]], mask: list[list[bool]]) -> dict[str, Any]:
    data = SimpleNamespace(
        player=player,
        completion_mask=torch.tensor(mask),
        rollout_per_token_logps=torch.tensor(logps),
        ref_per_token_logps=torch.full((len(logps), len(logps[0])), -2.0),
        advantages=torch.ones(len(logps), len(logps[0])),
    )
    return {"grpo_batch": data, "model_inputs": {}}


def test_each_player_has_its_own_mean_and_a_partners_tokens_are_not_in_it() -> None:
    own = ("player_0@3", "player_1@3")
    groups = [[_game({0: (-1.0, -3.0), 1: (-5.0,)}, own), _game({0: (-90.0,), 1: (-7.0,)}, ("base", "player_1@3"))]]
    batches = [_batch("player_0", [[-1.0, -3.0]], [[True, True]]), _batch("player_1", [[-5.0, 0.0]], [[True, False]])]
    assert shape_advantages(batches, Settings(entropy_bonus=0.1), groups, own, player_names(2)) == []
    first, second = (batch["grpo_batch"].advantages for batch in batches)
    assert torch.allclose(first, torch.tensor([[1 - 0.1 * 1.0, 1 + 0.1 * 1.0]]))
    assert torch.allclose(second, torch.tensor([[1 - 0.1 * 1.0, 1.0]]))


def test_the_kl_is_taken_off_advantages_only_when_it_is_asked_for_there() -> None:
    def shaped(**values: Any) -> tuple[list[list[float]], list[float]]:
        batch = _batch("player_0", [[-1.0, 0.0]], [[True, False]])
        gaps = shape_advantages([batch], Settings(**values), [], ("player_0@0", "player_1@0"), player_names(2))
        return batch["grpo_batch"].advantages.tolist(), gaps

    # The second token was not sampled.
    assert shaped(beta=0.5, kl="reward") == ([[0.5, 1.0]], [1.0])
    assert shaped(beta=0.5, kl="loss") == ([[1.0, 1.0]], [])
    assert shaped(beta=0.0, kl="reward") == ([[1.0, 1.0]], [])


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
