"""Weights that make the old team's games stand for those of a team whose first players have moved."""

import math

import pytest
import torch

from hanabi_grpo.training.advantages import ESTIMATORS
from hanabi_grpo.training.batching import plan_batches
from hanabi_grpo.training.sequential import MAX_WEIGHT, game_log_ratios, game_weights
from hanabi_grpo.types import Episode
from made_games import made_episode, made_turn


def test_a_games_log_ratio_is_the_sum_over_its_sampled_tokens() -> None:
    new = torch.tensor([[-1.0, -0.5, 7.0], [-2.0, float("nan"), 0.0], [3.0, 3.0, 3.0]])
    old = torch.tensor([[-1.5, -0.25, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert game_log_ratios(new, old, mask, [4, 2, -1]) == {4: 0.25, 2: -1.0}


def test_weights_are_products_over_the_earlier_players_and_are_cut() -> None:
    earlier = [{0: math.log(1.25), 1: 5.0, 2: -5.0}, {0: math.log(1.2), 3: math.log(0.75)}]
    weights = game_weights(earlier, [3, 0, 1, 2, 9])
    assert weights.shape == (5, 1)
    assert weights[:, 0].tolist() == pytest.approx([0.75, 1.5, MAX_WEIGHT, 1 / MAX_WEIGHT, 1.0])


def test_a_ratio_that_is_no_number_weighs_nothing_in_or_out() -> None:
    assert game_weights([{0: math.nan, 1: math.inf, 2: -math.inf}], [0, 1, 2])[:, 0].tolist() == [1.0, 2.0, 0.5]


def test_a_weighted_return_estimates_the_return_of_the_team_that_has_moved() -> None:
    # Player 0 chooses a, player 1 chooses b; the return is 1 where they agree. What player 1 sees as the mean return of
    # its move b=1 depends on player 0's policy, of which there are old games only.
    torch.manual_seed(0)
    old, new = 0.5, 0.7
    chosen = (torch.rand(200_000) < old).double()
    ratio = torch.where(chosen == 1, math.log(new / old), math.log((1 - new) / (1 - old)))
    games = list(range(len(chosen)))
    weights = game_weights([dict(zip(games, ratio.tolist(), strict=True))], games)[:, 0].double()
    assert float((weights * chosen).mean()) == pytest.approx(new, abs=0.01)
    assert float(chosen.mean()) == pytest.approx(old, abs=0.01)


def _game(number: int, replies: tuple[int, ...]) -> Episode:
    turns = (
        made_turn(player, *(number,) * length, rewards={"score": float(number)}, logprobs=-1.0, prompt_ids=(9,))
        for player, length in enumerate(replies)
        if length
    )
    return made_episode(*turns, game=number)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_rows_of_a_game_find_each_other_across_players_micro_batches_and_ranks(world_size: int) -> None:
    # Lengths put the two players' rows in different orders; game 2 ended before player 1's turn.
    groups = [[_game(0, (1, 5)), _game(1, (3, 1))], [_game(2, (2, 0)), _game(3, (4, 2))]]
    ranks = [
        plan_batches(
            groups,
            own=("player_0@0", "player_1@0"),
            micro_batches_per_player=2,
            rank=rank,
            world_size=world_size,
            estimator=ESTIMATORS["grpo"],
            pad_id=0,
            device=torch.device("cpu"),
        )
        for rank in range(world_size)
    ]
    ratios: dict[int, float] = {}
    for batch in (batch for rank in ranks for batch in rank if batch["grpo_batch"].player == "player_0"):
        data = batch["grpo_batch"]
        # A player that has made game n's tokens exp(n / 20) times as likely.
        moved = data.rollout_per_token_logps + batch["model_inputs"]["input_ids"][:, 1:] / 20
        found = game_log_ratios(moved, data.rollout_per_token_logps, data.completion_mask, data.games)
        assert not ratios.keys() & found.keys()
        ratios |= found
    assert ratios == pytest.approx({0: 0.0, 1: 3 / 20, 2: 4 / 20, 3: 12 / 20})
    seen = {}
    for batch in (batch for rank in ranks for batch in rank if batch["grpo_batch"].player == "player_1"):
        data = batch["grpo_batch"]
        weights = game_weights([ratios], data.games)[:, 0].tolist()
        for ids, there, weight in zip(
            batch["model_inputs"]["input_ids"].tolist(), data.completion_mask.any(1).tolist(), weights, strict=True
        ):
            if there:
                seen[ids[1]] = weight
            else:
                assert weight == 1.0
    assert seen == pytest.approx({0: 1.0, 1: math.exp(3 / 20), 3: math.exp(12 / 20)})
