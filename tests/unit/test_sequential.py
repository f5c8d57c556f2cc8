"""Weights that make the old team's games stand for those of a team whose first players have moved."""

import math

import pytest
import torch

from hanabi_grpo.training.sequential import MAX_WEIGHT, game_log_ratios, game_weights


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
