"""Advantage estimators: how much better a turn was than its alternatives, per player and deal.

All games of a group are the same deal, so the baseline is about play and not about luck. A player that had no
turn in a game is absent from that game's baseline instead of entering it as zero.
"""

from collections.abc import Callable, Sequence

from hanabi_grpo.types import Episode

EPSILON = 1e-4
PENALTY_WEIGHT = 2.0
Estimator = Callable[[Sequence[Episode], int], list[list[float]]]
"""(games of one deal, player) -> per game, per own turn of that player, its advantage."""


def grpo(episodes: Sequence[Episode], player: int) -> list[list[float]]:
    """Normalise the return of the whole game within the group: (R_i − mean R) / (std R + ε).

    Source: DeepSeekMath (arXiv 2402.03300), equation for outcome supervision; R_i is the player's return.
    """
    playing = [index for index, episode in enumerate(episodes) if episode.trajectory(player)]
    returns = [episodes[index].reward(player) for index in playing]
    mean, std = _mean(returns), _std(returns)
    value = {index: (one - mean) / (std + EPSILON) for index, one in zip(playing, returns, strict=True)}
    return [[value.get(index, 0.0)] * len(episode.trajectory(player)) for index, episode in enumerate(episodes)]


def turn(episodes: Sequence[Episode], player: int) -> list[list[float]]:
    """Credit each turn with the team's game, and with its own penalties alone.

    A_it = (S_i − mean S) / (std S + ε) + 2·r_it, where S_i is the team's return of game i and r_it what only this
    player received for turn t. A penalty reaches the reply that earned it and no other; the factor makes an illegal
    reply (−0.5) weigh as much as a game one standard deviation below the mean.
    """
    playing = [index for index, episode in enumerate(episodes) if episode.trajectory(player)]
    scores = [sum(one.team_reward for one in episodes[index].turns) for index in playing]
    mean, std = _mean(scores), _std(scores)
    team = {index: (score - mean) / (std + EPSILON) for index, score in zip(playing, scores, strict=True)}
    return [
        [team.get(index, 0.0) + PENALTY_WEIGHT * one.own_reward for one in episode.trajectory(player)]
        for index, episode in enumerate(episodes)
    ]


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "turn": turn}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return float((sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5)
