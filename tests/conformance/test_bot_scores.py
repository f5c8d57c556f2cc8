"""The bots' mean scores beside published ones and those measured with other implementations.

Few games each, so that it takes seconds; 10 000 of them agree within four standard errors.
"""

from statistics import fmean, stdev

import pytest

from boards import scripted_game
from hanabi_grpo.envs.hanabi.config import EnvConfig

FULL = {
    "iggi": {2: 17.56, 3: 16.97, 4: 16.19, 5: 15.17},
    "piers": {2: 17.52, 3: 17.69, 4: 17.09},
    "outer": {2: 14.76, 3: 14.79, 4: 13.31, 5: 12.83},
    # This project's own, of another 1000 deals.
    "focus-bot": {2: 21.20, 3: 20.16, 4: 20.16, 5: 19.21},
    "save-bot": {2: 22.82, 3: 19.94, 4: 19.31, 5: 17.75},
    "hat-bot": {3: 23.83, 4: 24.42, 5: 24.19},
    "plain-hat-bot": {3: 23.30, 4: 23.50, 5: 22.60},
}
"""Points on Full by number of players."""
SMALL = {
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
"""Points of two players."""
REFERENCE_ERROR = 0.03
"""Standard error of the figures above, at most about this."""


def check_score(name: str, preset: str, num_players: int, mean: float, num_games: int) -> None:
    """Compare a team of one bot with a published mean.

    Args:
        name: The bot.
        preset: The board.
        num_players: Players of the game.
        mean: The published score.
        num_games: Games to play.
    """
    config = EnvConfig(preset=preset, players=num_players)
    team = [name] * num_players
    scores = []
    # On the smallest boards half of the decks are held out, so both halves are played.
    for suite in ("test", "train"):
        for seed in range(num_games // 2):
            scores.append(scripted_game(config, team, suite=suite, seed=seed).score)
    error = (stdev(scores) ** 2 / num_games + REFERENCE_ERROR**2) ** 0.5
    assert abs(fmean(scores) - mean) < 4 * error


FULL_CASES = [(name, players, mean) for name, row in FULL.items() for players, mean in row.items()]
SMALL_CASES = [(name, preset, mean) for name, row in SMALL.items() for preset, mean in row.items()]


@pytest.mark.rest
@pytest.mark.parametrize(("name", "players", "mean"), FULL_CASES)
def test_a_bot_scores_on_full_what_others_measured(name: str, players: int, mean: float) -> None:
    check_score(name, "full", players, mean, num_games=200)


@pytest.mark.parametrize(("name", "preset", "mean"), SMALL_CASES)
def test_a_bot_scores_on_small_boards_what_others_measured(
    name: str, preset: str, mean: float
) -> None:
    check_score(name, preset, 2, mean, num_games=1000)
