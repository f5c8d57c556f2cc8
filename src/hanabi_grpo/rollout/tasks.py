"""The games that a rollout request asks for; client and server read it by the same rule.

A task that a request names twice goes on counting: its second group of 16 holds games 16 to 31. The same deal with
other seats is a task of its own.
"""

from dataclasses import dataclass

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import GameParameterError, SettingsError, shown
from hanabi_grpo.rollout.messages import MAX_GAMES, RolloutRequest, TaskRequest
from hanabi_grpo.settings.refs import check_seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One deal and the numbers of the games that are played of it."""

    config: EnvConfig
    suite: str
    seed: int
    seats: tuple[str, ...] | None
    """Who sits in each seat; None: whoever is served now."""
    games: range


def read_tasks(request: RolloutRequest) -> list[Task]:
    """Return the tasks of a request, in order.

    Raises:
        SettingsError: A task that cannot be played, by its number; or more games than a request may ask for.
    """
    if len(request.tasks) * request.num_games > MAX_GAMES:
        raise SettingsError(
            f"{len(request.tasks)} tasks, num_games={request.num_games}: a request may ask for {MAX_GAMES} games. "
            "Ask for fewer at once."
        )
    configs: dict[str, EnvConfig] = {}
    seen: dict[tuple[EnvConfig, str, int, tuple[str, ...] | None], int] = {}
    tasks = []
    for number, task in enumerate(request.tasks):
        try:
            # Most tasks of a request have the same.
            given = repr(task.env_config)
            if given not in configs:
                configs[given] = EnvConfig.parse(task.env_config)
            config = configs[given]
            seats = _seats(task, request.seats, config.players)
        except (SettingsError, GameParameterError) as error:
            raise SettingsError(f"tasks.{number}: {error}") from error
        key = (config, task.suite, task.seed, seats)
        start = seen.get(key, 0)
        seen[key] = start + request.num_games
        games = range(start, seen[key])
        tasks.append(Task(config=config, suite=task.suite, seed=task.seed, seats=seats, games=games))
    return tasks


def _seats(task: TaskRequest, default: tuple[str, ...] | None, num_players: int) -> tuple[str, ...] | None:
    if task.seats is None:
        if default is None:
            return None
        if len(default) < num_players:
            raise SettingsError(f"{num_players} players, but seats={shown(default)} names {len(default)}; name all.")
        words = default[:num_players]
    else:
        words = task.seats
        if len(words) != num_players:
            raise SettingsError(f"seats={shown(words)}: give a list of {num_players} seats.")
    return tuple(check_seat(word) for word in words)
