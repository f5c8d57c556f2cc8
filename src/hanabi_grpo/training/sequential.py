"""Weights of games for players that move after others in the same step: HANABI_UPDATE=sequential.

HAPPO (Kuba et al. 2022, arXiv 2109.11251) lets agent i_m, the m-th of a random order, follow its clipped objective with
M = (Π_{j<m} π_new^{i_j}(a^{i_j}|o) / π_old^{i_j}(a^{i_j}|o)) · A(s, a). In Hanabi one player moves at a time. Where i_m
moves the others have no choice, so the product over that state is 1, and since the players' adapters share no
weights, the update would be that of independent players, bit by bit.

Here the advantages come from the returns of whole games, which depend on all moves. The product therefore goes over all
replies of the earlier players in the game: it makes games that the old team played stand for games of the team in which
the earlier players have moved already. Such a product varies with the length of the game, so it is cut to
[1 / MAX_WEIGHT, MAX_WEIGHT].

Only what a game is worth is weighted. The parts of KL and entropy (`loss`) keep the strength that their settings
say, as the entropy term of HAPPO's own code, which M does not multiply, and as the KL term in the loss.
"""

from collections.abc import Mapping, Sequence

import torch

MAX_WEIGHT = 2.0


def game_log_ratios(new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, games: Sequence[int]) -> dict[int, float]:
    """Return per game Σ_t log π_new(a_t) − log π_old(a_t) of one player's replies, [batch, tokens] before and after.

    `games` are [batch] numbers of each row's game; rows without a sampled token are left out.
    """
    sums = torch.where(mask, new - old, 0.0).double().sum(1).tolist()
    present = mask.any(1).tolist()
    return {game: total for game, total, there in zip(games, sums, present, strict=True) if there}


def game_weights(log_ratios: Sequence[Mapping[int, float]], games: Sequence[int]) -> torch.Tensor:
    """Return [batch, 1] weights of a later player's rows, from each earlier player's ratios; 1 without its replies."""
    totals = torch.tensor([sum(one.get(game, 0.0) for one in log_ratios) for game in games], dtype=torch.float64)
    return totals.exp().clamp(1 / MAX_WEIGHT, MAX_WEIGHT).nan_to_num(1.0).float()[:, None]
