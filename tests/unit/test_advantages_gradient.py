"""A reward that is planted on one turn: where its gradient is found, through real batches and the real loss."""

from collections.abc import Sequence

import pytest
import torch

from hanabi_grpo.training.advantages import Estimator, choose_estimator
from hanabi_grpo.training.advantages.estimators import grpo, moving_baseline, return_to_go, turn
from hanabi_grpo.training.advantages.step import LossUnit
from hanabi_grpo.training.batching import plan_batches
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn

OWN = ("player_0@0", "player_1@0")
PROMPT = 3


def _token_gradients(
    groups: Sequence[Sequence[Episode]], estimator: Estimator, unit: LossUnit = "token"
) -> torch.Tensor:
    """Return for player 0 the gradient of the loss by each token's logprob: [games, tokens − 1]."""
    batch = plan_batches(
        groups,
        own=OWN,
        micro_batches_per_player=1,
        rank=0,
        world_size=1,
        estimator=estimator,
        unit=unit,
        pad_id=0,
        device=torch.device("cpu"),
    )[0]["grpo_batch"]
    logps = torch.full(batch.completion_mask.shape, -1.0, requires_grad=True)
    loss, _ = PolicyLoss(clip_low=0.2, clip_high=0.2)(logps, batch)
    loss.backward()
    assert logps.grad is not None
    return logps.grad


def _turns_with_gradient(gradient: torch.Tensor, lengths: Sequence[int]) -> list[bool]:
    """Tell per turn of one row whether all its reply tokens have a gradient; nothing else in the row may have any."""
    found, start = [], 0
    for length in lengths:
        assert not gradient[max(start - 1, 0) : start + PROMPT - 1].any(), "a prompt was trained"
        reply = gradient[start + PROMPT - 1 : start + PROMPT - 1 + length]
        assert len(reply) == length and bool(reply.all()) == bool(reply.any())
        found.append(bool(reply.all()))
        start += PROMPT + length
    assert not gradient[start - 1 :].any(), "padding was trained"
    return found


def _planted(*rewards: dict[str, float]) -> Episode:
    replies = zip(((4, 5), (6,), (7, 8, 9)), rewards, strict=True)
    return made_episode(*(made_turn(0, *ids, prompt_ids=(1,) * PROMPT, rewards=parts) for ids, parts in replies))


LENGTHS = (2, 1, 3)
PLAIN: tuple[dict[str, float], ...] = ({}, {}, {})


@pytest.mark.parametrize("unit", ["token", "turn", "sequence"])
@pytest.mark.parametrize("place", range(3))
def test_an_own_reward_reaches_the_tokens_of_its_turn_and_no_other(place: int, unit: LossUnit) -> None:
    rewards = [{"illegal": -0.5} if number == place else {} for number in range(3)]
    gradient = _token_gradients([[_planted(*rewards), _planted(*PLAIN)]], turn, unit)
    assert _turns_with_gradient(gradient[0], LENGTHS) == [number == place for number in range(3)]
    assert not gradient[1].any()


@pytest.mark.parametrize("part", ["score", "illegal"])
@pytest.mark.parametrize("place", range(3))
def test_a_return_to_go_reaches_its_turn_and_those_before(place: int, part: str) -> None:
    # Two games with opposite rewards leave the mean at 0, so that only what was planted is left.
    games = [_planted(*[{part: sign} if number == place else {} for number in range(3)]) for sign in (1.0, -1.0)]
    gradient = _token_gradients([games], return_to_go)
    for row in gradient:
        assert _turns_with_gradient(row, LENGTHS) == [number <= place for number in range(3)]


@pytest.mark.parametrize(
    "estimator",
    [grpo, choose_estimator("rloo"), choose_estimator("reinforce_pp"), moving_baseline({"player_0 x": 0.0})],
)
@pytest.mark.parametrize("place", range(3))
def test_the_return_of_a_game_reaches_all_its_turns(estimator: Estimator, place: int) -> None:
    games = [
        _planted(*[{"score": sign} if number == place else {} for number in range(3)]) for sign in (1.0, -1.0, 0.0)
    ]
    gradient = _token_gradients([games], estimator)
    assert [_turns_with_gradient(row, LENGTHS) for row in gradient] == [[True] * 3, [True] * 3, [False] * 3]


def test_without_a_reward_there_is_no_gradient_anywhere() -> None:
    for estimator in (turn, grpo, return_to_go):
        assert not _token_gradients([[_planted(*PLAIN), _planted(*PLAIN)]], estimator).any()
