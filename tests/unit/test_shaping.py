"""The check of sampler and trainer, and the entropy bonus."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.loss import add_entropy_bonus
from hanabi_grpo.training.mismatch import check_mismatch
from hanabi_grpo.types import Episode, player_names
from made_games import made_episode, made_turn


def _game(logprobs: dict[int, tuple[float, ...]], seats: tuple[str, ...] = ()) -> Episode:
    turns = []
    for player, values in logprobs.items():
        token_ids = [1] * len(values)
        turns.append(made_turn(player, *token_ids, logprobs=values))
    return made_episode(*turns, seats=seats)


def _batch(player: str, logps: list[list[float]], mask: list[list[bool]]) -> dict[str, Any]:
    data = SimpleNamespace(
        player=player,
        completion_mask=torch.tensor(mask),
        rollout_per_token_logps=torch.tensor(logps),
        advantages=torch.ones(len(logps), len(logps[0])),
    )
    return {"grpo_batch": data, "model_inputs": {}}


def test_each_player_has_its_own_mean_and_a_partners_tokens_are_not_in_it() -> None:
    own = ("player_0@3", "player_1@3")
    groups = [
        [
            _game({0: (-1.0, -3.0), 1: (-5.0,)}, own),
            _game({0: (-90.0,), 1: (-7.0,)}, ("base", "player_1@3")),
        ]
    ]
    batches = [
        _batch("player_0", [[-1.0, -3.0]], [[True, True]]),
        _batch("player_1", [[-5.0, 0.0]], [[True, False]]),
    ]
    add_entropy_bonus(batches, 0.1, groups, own, player_names(2))
    first, second = (batch["grpo_batch"].advantages for batch in batches)
    assert torch.allclose(first, torch.tensor([[1 - 0.1 * 1.0, 1 + 0.1 * 1.0]]))
    assert torch.allclose(second, torch.tensor([[1 - 0.1 * 1.0, 1.0]]))


def test_the_bonus_follows_the_exact_gradient_of_the_entropy_whatever_the_mean() -> None:
    logits = torch.tensor([0.5, -1.0, 2.0, 0.1], requires_grad=True)
    logps = torch.log_softmax(logits, -1)
    [exact] = torch.autograd.grad(-(logps.exp() * logps).sum(), logits, retain_graph=True)
    for mean in (0.0, -1.7):
        batch = _batch("player_0", [logps.tolist()], [[True] * 4])
        add_entropy_bonus(
            [batch], 0.3, [[_game({0: (mean,)}, ("player_0",))]], ("player_0",), ("player_0",)
        )
        # E_a[f(a) ∇log π(a)] over all actions: what the loss does with a part f of an advantage.
        step = (logps.exp().detach() * batch["grpo_batch"].shaping[0] * logps).sum()
        assert torch.allclose(
            torch.autograd.grad(step, logits, retain_graph=True)[0], 0.3 * exact, atol=1e-6
        )


def test_a_target_gives_each_player_the_part_of_the_bonus_that_it_lacks() -> None:
    own = ("player_0@3", "player_1@3")
    groups = [[_game({0: (-0.02, -0.08), 1: (-0.5, -0.1)}, own)]]
    batches = [
        _batch("player_0", [[-0.02, -0.08]], [[True, True]]),
        _batch("player_1", [[-0.5, -0.1]], [[True, True]]),
    ]
    add_entropy_bonus(batches, 0.4, groups, own, player_names(2), target=0.2)
    first, second = (batch["grpo_batch"].shaping for batch in batches)
    # Entropies .05 and .3: three quarters of the bonus, and none.
    assert torch.allclose(first, torch.tensor([[-0.3 * 0.03, 0.3 * 0.03]]))
    assert torch.equal(second, torch.zeros(1, 2))


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
    assert (
        check_mismatch("player_0", 0, torch.ones(1, 1), torch.zeros(1, 1), nothing, tolerance=0.01)
        == 0.0
    )


def test_a_difference_above_the_tolerance_stops_with_both_numbers() -> None:
    with pytest.raises(
        ParityError,
        match=r"player_1@3: .*differ by 0\.02 .*HANABI_PARITY_TOLERANCE=0\.01.*-0\.7300.*-0\.7500",
    ):
        _check(0.02)


def test_a_trainer_that_is_no_number_is_left_to_its_gradient_and_a_sampler_that_is_none_stops() -> (
    None
):
    assert math.isnan(_check(float("nan")))
    ones = torch.ones((1, 2), dtype=torch.bool)
    with pytest.raises(ParityError, match="nan"):
        check_mismatch(
            "player_0", 0, torch.zeros(1, 2), torch.tensor([[0.0, math.nan]]), ones, tolerance=0.01
        )
