"""The arithmetic behind `advantages`: games and turns beside the means of others."""

from collections.abc import Callable, Sequence

from hanabi_grpo.types import Episode

EPSILON = 1e-4
Values = list[list[float]]
"""Per game, per own turn of one player: its advantage; an empty list for a game without a turn of that player."""


def over_games(
    episodes: Sequence[Episode],
    player: int,
    compare: Callable[[Sequence[float]], Sequence[float]],
    worth: Callable[[Episode, int], float] = Episode.reward,
) -> Values:
    """Return for every turn of a game what `compare` makes of that game's `worth` beside those of the others.

    Only games in which the player had a turn are compared.
    """
    turns = [len(episode.trajectory(player)) for episode in episodes]
    playing = [episode for episode, count in zip(episodes, turns, strict=True) if count]
    values = iter(compare([worth(one, player) for one in playing]))
    return [[next(values)] * count if count else [] for count in turns]


def returns_to_go(episodes: Sequence[Episode], player: int) -> Values:
    """Return what the player receives from each of its turns on, that turn included, whoever moved."""
    found: Values = []
    for episode in episodes:
        total, backwards = 0.0, []
        for one in reversed(episode.turns):
            total += one.reward(player)
            if one.player == player:
                backwards.append(total)
        found.append(backwards[::-1])
    return found


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
    apart = [value - centre for value in values]
    # A product overflows to infinity, where a power would raise.
    variance = sum(value * value for value in apart) / (len(values) - 1)
    if variance != float("inf"):
        return float(variance**0.5)
    # An infinite divisor would make every advantage a quiet 0.
    largest = max(map(abs, apart))
    return float(largest * (sum((value / largest) ** 2 for value in apart) / (len(values) - 1)) ** 0.5)
