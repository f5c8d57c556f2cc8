"""The check of sampler and trainer, and the entropy bonus."""

import math

import pytest
import torch

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.loss import (
    add_entropy_bonus,
    entropy_terms,
    mean_logprobs,
    token_advantages,
)
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.mismatch import check_mismatch
from hanabi_grpo.types import Episode, player_names
from made_games import made_episode, made_turn


def _game(logprobs: dict[int, tuple[float, ...]], seats: tuple[str, ...] = ()) -> Episode:
    turns = []
    for player, values in logprobs.items():
        token_ids = [1] * len(values)
        turns.append(made_turn(player, *token_ids, logprobs=values))
    return made_episode(*turns, seats=seats)


def _batch(player: str, logprobs: list[list[float]], mask: list[list[bool]]) -> MicroBatch:
    num_rows = len(logprobs)
    width = len(logprobs[0])
    return MicroBatch(
        player=player,
        ids=torch.zeros(num_rows, width + 1, dtype=torch.long),
        lengths=torch.full((num_rows,), width + 1),
        reply_mask=torch.tensor(mask),
        sampler_logprobs=torch.tensor(logprobs),
        advantages=torch.ones(num_rows, width),
        num_reply_tokens=sum(sum(row) for row in mask),
        games=tuple(range(num_rows)),
    )


def test_each_player_has_its_own_mean_and_a_partners_tokens_are_not_in_it() -> None:
    seats = ("player_0@3", "player_1@3")
    with_partner = _game({0: (-90.0,), 1: (-7.0,)}, ("base", "player_1@3"))
    groups = [[_game({0: (-1.0, -3.0), 1: (-5.0,)}, seats), with_partner]]
    means = mean_logprobs(groups, seats, player_names(2))
    assert means == {"player_0": -2.0, "player_1": -6.0}
    first = _batch("player_0", [[-1.0, -3.0]], [[True, True]])
    second = _batch("player_1", [[-5.0, 0.0]], [[True, False]])
    add_entropy_bonus([first, second], 0.1, means)
    bonus = 0.1 * 1.0
    assert torch.allclose(token_advantages(first), torch.tensor([[1 - bonus, 1 + bonus]]))
    assert torch.allclose(token_advantages(second), torch.tensor([[1 - bonus, 1.0]]))


def test_the_bonus_follows_the_exact_gradient_of_the_entropy_whatever_the_mean() -> None:
    logits = torch.tensor([0.5, -1.0, 2.0, 0.1], requires_grad=True)
    logps = torch.log_softmax(logits, -1)
    entropy = -(logps.exp() * logps).sum()
    [exact] = torch.autograd.grad(entropy, logits, retain_graph=True)
    batch = _batch("player_0", [logps.tolist()], [[True] * 4])
    for mean in (0.0, -1.7):
        bonus = entropy_terms(batch, 0.3, mean)
        # E_a[f(a) ∇log π(a)] over all actions: what the loss does with a part f of an advantage.
        step = (logps.exp().detach() * bonus[0] * logps).sum()
        [gradient] = torch.autograd.grad(step, logits, retain_graph=True)
        assert torch.allclose(gradient, 0.3 * exact, atol=1e-6)


def test_a_target_gives_each_player_the_part_of_the_bonus_that_it_lacks() -> None:
    first = _batch("player_0", [[-0.02, -0.08]], [[True, True]])
    second = _batch("player_1", [[-0.5, -0.1]], [[True, True]])
    # Entropies .05 and .3: three quarters of the bonus, and none.
    targets = {"player_0": 0.2, "player_1": 0.2}
    add_entropy_bonus([first, second], 0.4, {"player_0": -0.05, "player_1": -0.3}, targets)
    assert first.entropy_bonus is not None
    assert second.entropy_bonus is not None
    assert torch.allclose(first.entropy_bonus, torch.tensor([[-0.3 * 0.03, 0.3 * 0.03]]))
    assert torch.equal(second.entropy_bonus, torch.zeros(1, 2))


def _check(shift: float, tolerance: float = 0.01) -> float:
    """Compare two sampled tokens, and one of padding that is always far off."""
    sampler = torch.tensor([[-0.5, -1.0, -9.0]])
    trainer = torch.tensor([[-0.5 + shift, -1.0 + shift, 4.0]])
    mask = torch.tensor([[True, True, False]])
    gaps = check_mismatch("player_1", 3, trainer, sampler, mask, tolerance=tolerance)
    assert gaps.num_tokens == 2.0
    return gaps.mean


def test_a_difference_up_to_the_tolerance_is_reported_and_padding_is_ignored() -> None:
    assert _check(0.0) == 0.0
    assert _check(0.005) == pytest.approx(0.005, abs=1e-6)
    ones = torch.ones(1, 1)
    zeros = torch.zeros(1, 1)
    no_token = torch.zeros((1, 1), dtype=torch.bool)
    gaps = check_mismatch("player_0", 0, ones, zeros, no_token, tolerance=0.01)
    assert (gaps.total, gaps.num_tokens, gaps.mean) == (0.0, 0.0, 0.0)


def test_a_difference_above_the_tolerance_stops_with_both_numbers() -> None:
    with pytest.raises(
        ParityError,
        match=r"player_1@3: .*differ by 0\.02 .*HANABI_PARITY_TOLERANCE=0\.01.*-0\.7300.*-0\.7500",
    ):
        _check(0.02)


def test_a_trainer_that_is_no_number_is_left_to_its_gradient() -> None:
    assert math.isnan(_check(float("nan")))


def test_a_sampler_that_is_no_number_stops() -> None:
    trainer = torch.zeros(1, 2)
    sampler = torch.tensor([[0.0, math.nan]])
    every_token = torch.ones((1, 2), dtype=torch.bool)
    with pytest.raises(ParityError, match="nan"):
        check_mismatch("player_0", 0, trainer, sampler, every_token, tolerance=0.01)
