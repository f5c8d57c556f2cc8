"""The bots' mean scores beside published ones and those measured with other implementations.

Few games each, so that it takes seconds; 10 000 of them agree within four standard errors.
"""

from collections.abc import Iterator, Mapping
from statistics import fmean, stdev
from typing import Any

import pytest

from boards import scripted_game
from hanabi_grpo.envs.hanabi.config import EnvConfig

SCORES_ON_FULL: Mapping[str, Mapping[int, float]] = {
    "iggi": {2: 17.56, 3: 16.97, 4: 16.19, 5: 15.17},
    "piers": {2: 17.52, 3: 17.69, 4: 17.09},
    "outer": {2: 14.76, 3: 14.79, 4: 13.31, 5: 12.83},
    # This project's own, of another 1000 tasks.
    "focus-bot": {2: 21.20, 3: 20.16, 4: 20.16, 5: 19.21},
}
"""Mean score on the full board by bot and number of players."""
SCORES_ON_SMALL_BOARDS: Mapping[str, Mapping[str, float]] = {
    "random": {"laptop": 0.64},
    "blind": {"laptop": 0.133, "marshal-mini": 2.300},
    "hint-bot": {"laptop": 2.65},
    "iggi": {
        "marshal-mini": 2.829,
        "marshal-simple": 2.945,
        "marshal-full": 7.593,
        "hle-small": 5.705,
    },
    "piers": {
        "marshal-mini": 2.537,
        "marshal-simple": 2.518,
        "marshal-full": 7.853,
        "hle-small": 5.620,
    },
    "outer": {
        "marshal-mini": 2.825,
        "marshal-simple": 2.945,
        "marshal-full": 6.939,
        "hle-small": 4.566,
    },
}
"""Mean score of two players by bot and board."""
REFERENCE_ERROR = 0.03
"""Standard error of the figures above, at most about this."""
STANDARD_ERRORS = 4
"""How far a mean may be from its reference."""


def cases(table: Mapping[str, Mapping[Any, float]]) -> Iterator[tuple[str, object, float]]:
    """Yield bot, board or number of players, and mean score."""
    for name, row in table.items():
        for column, mean in row.items():
            yield name, column, mean


def assert_mean_score(config: EnvConfig, name: str, mean: float, num_games: int) -> None:
    """Check the mean score of a team of one bot.

    Args:
        config: Board and number of players.
        name: The bot in every seat.
        mean: The reference.
        num_games: Number of games to play.
    """
    team = [name] * config.players
    scores = []
    # On the smallest boards half of the decks are held out, so both halves are played.
    for suite in ("test", "train"):
        for seed in range(num_games // 2):
            scores.append(scripted_game(config, team, suite=suite, seed=seed).score)
    squared_error = stdev(scores) ** 2 / num_games + REFERENCE_ERROR**2
    assert abs(fmean(scores) - mean) < STANDARD_ERRORS * squared_error**0.5


@pytest.mark.parametrize(("name", "players", "mean"), cases(SCORES_ON_FULL))
def test_a_bot_scores_on_full_what_others_measured(name: str, players: int, mean: float) -> None:
    config = EnvConfig(preset="full", players=players)
    assert_mean_score(config, name, mean, num_games=400)


@pytest.mark.parametrize(("name", "preset", "mean"), cases(SCORES_ON_SMALL_BOARDS))
def test_a_bot_scores_on_small_boards_what_others_measured(
    name: str, preset: str, mean: float
) -> None:
    config = EnvConfig(preset=preset, players=2)
    assert_mean_score(config, name, mean, num_games=1000)
