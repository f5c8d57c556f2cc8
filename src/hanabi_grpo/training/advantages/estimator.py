"""What an estimator is: a pure function from games that are compared with each other to advantages of turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hanabi_grpo.types import Episode

EPSILON = 1e-4
Values = list[list[float]]
"""Per game, per own turn of one player: its advantage; an empty list for a game without a turn of that player."""
Formula = Callable[[Sequence[Episode], int, bool], Values]
"""(games, player, whether to divide by the standard deviation) -> Values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """One estimator as it is set up for a run.

    Example:
        grpo(games_of_one_deal, 0) == [[0.93, 0.93], [-1.06], [0.13]]
    """

    name: str
    """Of HANABI_ADVANTAGE."""
    formula: Formula
    pool: Literal["group", "step"]
    """Which games are compared: those of one group, or all games of the step that are on the same board."""
    scaled: bool
    """Whether to divide by the standard deviation; what the source does, unless the run says otherwise."""

    def __call__(self, episodes: Sequence[Episode], player: int) -> Values:
        """Return the advantages of a player's turns.

        Args:
            episodes: Games in which the player's seat is trained, of one pool.
            player: Number of the seat.
        """
        return self.formula(episodes, player, self.scaled)


def playing(episodes: Sequence[Episode], player: int) -> list[int]:
    """Return the numbers of the games in which a player had a turn; the others enter no baseline."""
    return [index for index, episode in enumerate(episodes) if episode.trajectory(player)]


def spread_over_turns(
    episodes: Sequence[Episode], player: int, games: Sequence[int], values: Sequence[float]
) -> Values:
    """Give each turn of game `games[k]` the value `values[k]`."""
    value = dict(zip(games, values, strict=True))
    return [
        [value[index]] * len(one.trajectory(player)) if index in value else [] for index, one in enumerate(episodes)
    ]


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
