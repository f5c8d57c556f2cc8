"""Games of lineups on lists of tasks, for whoever counts or collects them: by scripts here, by
models on a server.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import FORFEIT, SKIP, Setup
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings.refs import NOT_HELD, Ref, ScriptRef
from hanabi_grpo.types import Episode, task_name

HALF = "split-"
"""What the name of a suite begins with that has only some of the starts, in environments that can
task so.
"""
SCRIPTED_GAMES = 50
SERVED_GAMES = 200
"""Games of one request: enough to fill the engine, few enough for a progress bar that moves."""
_MAX_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How the games of models are played."""

    client: RolloutClient
    resolver: SeatResolver
    max_tokens: int
    """Per reply."""
    temperature: float
    """Of sampling; 0 is greedy."""


class Table(NamedTuple):
    """One task and who plays it, in turn order."""

    seed: int
    refs: tuple[Ref, ...]


def start_numbers(setup: Setup[Any], suite: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """Return for each task the number of its cluster, counted from 0 in order of appearance.

    Where a suite has only some of the starts, tasks of one start are one cluster. A suite that
    draws from all starts has no others to speak for: its tasks are independent draws of the very
    game that the score is about."""
    if not (setup.spec.disjoint_splits or suite.startswith(HALF)):
        return tuple(range(len(seeds)))
    numbers: dict[str, int] = {}
    ids = (setup.environment.start_id(setup.config, split=suite, seed=seed) for seed in seeds)
    return tuple(numbers.setdefault(name, len(numbers)) for name in ids)


def play_tables(
    tables: Sequence[Table],
    setup: Setup[Any],
    *,
    suite: str,
    label: str,
    served: Served | None,
    num_games: int = 1,
    together: int = 1,
) -> Iterator[list[list[Episode]]]:
    """Play each table `num_games` times; yields the games of some tables at a time, per table a
    list.

    Errors call the lineup by `label`; `served` is needed unless scripts fill every seat; so many
    tables `together` are never told apart.

    Raises: SettingsError: A checkpoint cannot be used. ServerError: The server failed, or dropped a
        game: figures over the rest would be biased by whatever broke it.
    """
    needs_server = any(not isinstance(ref, ScriptRef) for table in tables for ref in table.refs)
    games = SERVED_GAMES if needs_server else SCRIPTED_GAMES
    size = together * max(1, games // (together * num_games))
    for some in (tables[first : first + size] for first in range(0, len(tables), size)):
        if needs_server:
            assert served is not None
            yield _ask(served, some, setup, suite, label, num_games)
        else:
            # Without an event loop, which Ctrl-C could leave half closed.
            groups = []
            for table in some:
                policies = {
                    player: setup.environment.policies[str(ref)]()
                    for player, ref in enumerate(table.refs)
                }
                task = setup.task(suite, table.seed)
                groups.append(
                    [play_scripts(task, policies, number=number) for number in range(num_games)]
                )
            yield groups


def check_replay(setup: Setup[Any], episode: Episode) -> None:
    """Play the actions of an episode again; ServerError: they do not fit the task that it names, or
    its result.
    """
    where = f"task {task_name(episode.suite, episode.seed)}, game {episode.game}"
    game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
    for step, turns in groupby(episode.turns, lambda turn: turn.step):
        actions = {turn.player: turn.action for turn in turns}
        legal = {player: game.legal(player) for player in game.to_act()}
        if actions.keys() != legal.keys() or not all(
            (allowed := legal[player]) is None or action in (*allowed, FORFEIT, SKIP)
            for player, action in actions.items()
        ):
            raise ServerError(
                f"{where}, step {step}: {actions} cannot be played; legal is {legal}."
            )
        game.step(actions)
    if dict(game.result()) != dict(episode.result):
        raise ServerError(
            f"{where}: its actions lead to {dict(game.result())}, it says {dict(episode.result)}."
        )


def _ask(
    served: Served,
    tables: Sequence[Table],
    setup: Setup[Any],
    suite: str,
    label: str,
    num_games: int,
) -> list[list[Episode]]:
    """Return the games that the server plays.

    A lent adapter that the server does not hold any more is lent again: others lent theirs
    meanwhile, or it is another server process. The seats stay, because their words are digests."""

    def ask() -> RolloutResult:
        row = setup.row()
        tasks = [
            {
                **row,
                "suite": suite,
                "seed": table.seed,
                "seats": list(served.resolver.seats(table.refs)),
            }
            for table in tables
        ]
        return served.client.play(
            tasks, num_games=num_games, max_tokens=served.max_tokens, temperature=served.temperature
        )

    try:
        result = ask()
    except ServerError as error:
        if NOT_HELD not in str(error):
            raise
        served.resolver.forget_guests()
        result = ask()
    if result.dropped or [len(group) for group in result.groups] != [num_games] * len(tables):
        reasons = [
            f"task {task_name(game.suite, game.seed)}: {game.reason}" for game in result.dropped
        ]
        shown = "; ".join(reasons[:_MAX_REASONS]) + ("; …" if len(reasons) > _MAX_REASONS else "")
        wanted, played = num_games * len(tables), sum(len(group) for group in result.groups)
        raise ServerError(
            f"{label}: {wanted - played} of {wanted} games were not played "
            f"({shown or 'no reason given'}); "
            "every task is needed. Look at the server's log, then give the same command again."
        )
    for group in result.groups:
        for episode in group:
            check_replay(setup, episode)
    return result.groups
