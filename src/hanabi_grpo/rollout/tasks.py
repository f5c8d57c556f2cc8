"""The games that a rollout request asks for; client and server read it by the same rule.

A task that a request names twice goes on counting: its second group of 16 holds games 16 to 31. The same deal with
other seats is a task of its own.
"""

from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Setup, Task
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import GameParameterError, SettingsError, shown
from hanabi_grpo.rollout.messages import MAX_GAMES, RolloutRequest, TaskRequest
from hanabi_grpo.rollout.players import check_script
from hanabi_grpo.settings.refs import check_seat, is_scripted


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTask:
    """One task, who plays it and the numbers of its games."""

    task: Task[Any]
    seats: tuple[str, ...] | None
    """Who sits in each seat; None: whoever is served now."""
    games: range

    @property
    def where(self) -> str:
        """What errors and logs call it, e.g. "hanabi train/17"."""
        return f"{self.task.environment.name} {self.task.split}/{self.task.seed}"


def read_tasks(request: RolloutRequest) -> list[RequestedTask]:
    """Return the tasks of a request, in order.

    Raises:
        SettingsError: A task that cannot be played, by its number; or more games than a request may ask for.
    """
    if len(request.tasks) * request.num_games > MAX_GAMES:
        raise SettingsError(
            f"{len(request.tasks)} tasks, num_games={request.num_games}: a request may ask for {MAX_GAMES} games. "
            "Ask for fewer at once."
        )
    setups: dict[str, Setup[Any]] = {}
    seen: dict[tuple[Task[Any], tuple[str, ...] | None], int] = {}
    tasks = []
    for number, task in enumerate(request.tasks):
        try:
            # Most tasks of a request have the same.
            given = repr((task.env, task.env_config))
            if given not in setups:
                setups[given] = setup(task.env, task.env_config)
            seats = _seats(task, request.seats, setups[given])
        except (SettingsError, GameParameterError) as error:
            raise SettingsError(f"tasks.{number}: {error}") from error
        start_of = setups[given].task(task.suite, task.seed)
        first = seen.get((start_of, seats), 0)
        seen[start_of, seats] = first + request.num_games
        tasks.append(RequestedTask(task=start_of, seats=seats, games=range(first, first + request.num_games)))
    return tasks


def _seats(task: TaskRequest, default: tuple[str, ...] | None, found: Setup[Any]) -> tuple[str, ...] | None:
    num_players = found.spec.num_players
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
    for word in words:
        if is_scripted(check_seat(word)):
            check_script(found, word)
    return tuple(words)
