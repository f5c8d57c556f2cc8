"""The arithmetic behind `advantages`: games and turns beside the means of others."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import hypot

from hanabi_grpo.types import Episode

EPSILON = 1e-4
Values = list[list[float]]
"""Per game, per own turn of one player: its advantage; an empty list for a game without a turn of
that player.
"""


def over_games(
    episodes: Sequence[Episode],
    player: int,
    compare: Callable[[Sequence[float]], Sequence[float]],
    worth: Callable[[Episode, int], float] = Episode.reward,
) -> Values:
    """Return for every turn of a game what `compare` makes of that game's `worth` beside those of
    the others.

    Only games in which the player had a turn are compared.
    """
    turns = [len(episode.trajectory(player)) for episode in episodes]
    playing = [episode for episode, count in zip(episodes, turns, strict=True) if count]
    values = iter(compare([worth(one, player) for one in playing]))
    return [[next(values)] * count if count else [] for count in turns]


def returns_to_go(episodes: Sequence[Episode], player: int) -> Values:
    """Return what the player receives from each of its turns on, that turn included, whoever
    moved.
    """
    found: Values = []
    for episode in episodes:
        total, backwards = 0.0, []
        for one in reversed(episode.turns):
            total += one.reward(player)
            if one.player == player:
                backwards.append(total)
        found.append(backwards[::-1])
    return found


def lambda_advantages(
    episode: Episode, player: int, chain: Mapping[int, float], decay: float
) -> dict[int, float]:
    """Return A_k = Σ_j λ^j δ_{k+j} at the turns of a chain, with δ_k = r_k + V(s_{k+1}) − V(s_k).

    r_k is what the player receives from turn k on and before the next turn of the chain; behind the
    last one nothing is expected. Turns of one step have one state, whose value is the player's own
    where it has one.

    Source: generalised advantage estimation (arXiv 1506.02438), equation 16 with γ = 1.
    """
    found: dict[int, float] = {}
    reward = value_after = advantage = 0.0
    for _, group in groupby(reversed([*enumerate(episode.turns)]), key=lambda one: one[1].step):
        turns = list(group)
        reward += sum(turn.reward(player) for _, turn in turns)
        asked = [number for number, _ in turns if number in chain]
        if asked:
            own = [number for number in asked if episode.turns[number].player == player]
            value = mean([chain[number] for number in own or asked])
            advantage = reward + value_after - value + decay * advantage
            value_after, reward = value, 0.0
            found |= dict.fromkeys(asked, advantage)
    return found


def own_turns(episode: Episode, player: int) -> dict[int, float]:
    """Return the chain of who has no critic: 0 at the player's own turns."""
    return {number: 0.0 for number, turn in enumerate(episode.turns) if turn.player == player}


def mean_of_others(values: Values, game: int) -> float | None:
    """Return the mean of what all games but one have, None where that is nothing."""
    others = [value for one in (*values[:game], *values[game + 1 :]) for value in one]
    return mean(others) if others else None


def over_turns(values: Values, scaled: bool) -> Values:
    """Return the values of turns `centred` among all turns."""
    flat = iter(centred([value for game in values for value in game], scaled))
    return [[next(flat) for _ in game] for game in values]


def centred(values: Sequence[float], scaled: bool) -> list[float]:
    """Return (x − mean) / (std + ε), or x − mean where `scaled` is false."""
    centre, scale = mean(values), divisor(values, scaled)
    return [(value - centre) / scale for value in values]


def divisor(values: Sequence[float], scaled: bool) -> float:
    """Return std + ε, or 1 where `scaled` is false."""
    return deviation(values) + EPSILON if scaled else 1.0


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (divided by n − 1), 0 of fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    # Not by squares: of large values they are infinite, and such a divisor would make every
    # advantage a quiet 0.
    return hypot(*(value - centre for value in values)) / (len(values) - 1) ** 0.5
