"""Plays lineups on lists of tasks: scripts in this process, models on a server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import FORFEIT, SKIP, Policy, ScriptSeat, Seat, Setup, Task
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.seeds import request_seed
from hanabi_grpo.settings.refs import NOT_HELD, Ref, ScriptRef, UrlRef
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter
from hanabi_grpo.types import DroppedGame, Episode, task_name

SCRIPTED_GAMES = 50
"""Games of scripts between two reports of progress."""
SERVED_GAMES = 200
"""Games of one request: enough to fill the engine, few enough for a progress bar that moves."""
_MAX_REASONS = 3
"""Number of dropped games whose reasons an error message gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How the games of models are played."""

    client: RolloutClient
    resolver: SeatResolver
    max_tokens: int
    """Largest number of tokens of a reply."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    token_filter: TokenFilter = ALL_TOKENS
    """Which tokens models may draw."""
    seed: int | None = None
    """Seed of every sampled reply; None: replies differ each time."""


class Table(NamedTuple):
    """One task with its seat assignment."""

    seed: int
    refs: tuple[Ref, ...]
    """The players, in turn order."""


def play_tables(
    tables: Sequence[Table],
    setup: Setup[Any],
    *,
    suite: str,
    label: str,
    served: Served | None,
    num_games: int = 1,
    together: int = 1,
    drawn: Callable[[Table], None] = lambda table: None,
) -> Iterator[list[list[Episode]]]:
    """Play each table `num_games` times.

    Args:
        tables: The tasks with their seat assignments.
        setup: Environment and configuration.
        suite: Suite of the tasks.
        label: Name of the lineup in error messages.
        served: How models are played; needed unless scripts fill every seat.
        num_games: Number of games of each table.
        together: Consecutive tables that are always yielded together, e.g. the seat orders of a
            task.
        drawn: Receives each table in whose games a reply was drawn at random, or may have been,
            before the games are yielded.

    Yields:
        The games of a batch of tables, one list per table.

    Raises:
        SettingsError: A checkpoint cannot be used.
        ServerError: The server failed, or dropped a game: figures over the rest would be biased by
            whatever broke it.
    """
    needs_server = any(map(_has_model, tables))
    games_per_batch = SERVED_GAMES if needs_server else SCRIPTED_GAMES
    batch_size = together * max(1, games_per_batch // (together * num_games))
    for start in range(0, len(tables), batch_size):
        batch = tables[start : start + batch_size]
        if needs_server:
            assert served is not None
            for table in batch:
                if _may_be_drawn(table, served):
                    drawn(table)
            yield _play_on_server(
                served, batch, setup, suite=suite, label=label, num_games=num_games
            )
        else:
            # Without an event loop, which Ctrl-C could leave half closed.
            games_of_tables = []
            for table in batch:
                games, has_drawn = _play_scripted(table, setup, suite, num_games)
                games_of_tables.append(games)
                if has_drawn:
                    drawn(table)
            yield games_of_tables


def _has_model(table: Table) -> bool:
    """Tell whether a seat is filled by anything but a script."""
    return not all(isinstance(ref, ScriptRef) for ref in table.refs)


def _may_be_drawn(table: Table, served: Served) -> bool:
    """Tell whether replies of a table that the server plays may be drawn at random.

    Whether a script on the server drew is not known here, so every script counts.
    """
    has_chance = any(isinstance(ref, ScriptRef | UrlRef) for ref in table.refs)
    return has_chance or served.temperature > 0


def _play_scripted(
    table: Table, setup: Setup[Any], suite: str, num_games: int
) -> tuple[list[Episode], bool]:
    """Play one table whose seats are all filled by scripts.

    Returns:
        The games, and whether a script drew at random, or may have.
    """
    scripts = {}
    for player, ref in enumerate(table.refs):
        scripts[player] = _WatchedScript(setup.environment.policies[str(ref)]())
    task = setup.task(suite, table.seed)
    games = [play_scripts(task, scripts, number=number) for number in range(num_games)]
    return games, any(script.has_drawn for script in scripts.values())


@dataclass(frozen=True, slots=True)
class _WatchedScript:
    """A script that plays as always, and of which is known whether it drew at random."""

    policy: Policy
    _seats: list[tuple[Seat, object]] = field(default_factory=list)
    """Its seats, each with the state of its generator before the first move; None: not known."""

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.policy.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        """Return a new seat of the script."""
        seat = self.policy.seat(player, task=task, game=game)
        self._seats.append((seat, _generator_state(seat)))
        return seat

    @property
    def has_drawn(self) -> bool:
        """Whether it drew in any game, or may have."""
        return any(state is None or _generator_state(seat) != state for seat, state in self._seats)


def _generator_state(seat: Seat) -> object:
    """Return the state of a script's random generator, which every draw changes.

    Returns:
        None for a seat of another kind, which may draw in ways of its own.
    """
    return seat.rng.getstate() if isinstance(seat, ScriptSeat) else None


def check_replay(setup: Setup[Any], episode: Episode) -> None:
    """Play the actions of an episode again and compare the result.

    Raises:
        ServerError: The actions do not fit the task that the episode names, or its result.
    """
    where = f"task {task_name(episode.suite, episode.seed)}, game {episode.game}"
    game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
    for step, turns in groupby(episode.turns, lambda turn: turn.step):
        actions = {turn.player: turn.action for turn in turns if not turn.is_call}
        legal = {player: game.legal(player) for player in game.to_act()}
        if not _can_be_played(actions, legal):
            raise ServerError(
                f"{where}, step {step}: {actions} cannot be played; legal actions: {legal}."
            )
        game.step(actions)
    result = dict(game.result())
    if result != dict(episode.result):
        raise ServerError(
            f"{where}: replaying its actions gives {result}, but the record has "
            f"{dict(episode.result)}."
        )


def _can_be_played(actions: Mapping[int, str], legal: Mapping[int, Sequence[str] | None]) -> bool:
    """Tell whether exactly the players to act do so, each by a legal action (None: all are)."""
    if actions.keys() != legal.keys():
        return False
    for player, action in actions.items():
        allowed = legal[player]
        if allowed is not None and action not in (*allowed, FORFEIT, SKIP):
            return False
    return True


def _play_on_server(
    served: Served,
    tables: Sequence[Table],
    setup: Setup[Any],
    *,
    suite: str,
    label: str,
    num_games: int,
) -> list[list[Episode]]:
    """Return the games that the server plays, one list per table.

    A guest adapter that the server no longer holds is uploaded again: uploads of other clients may
    have replaced it, or the server was restarted. The seats stay the same, because a guest
    adapter's name is a digest of its weights.
    """
    sampling_seed = None
    if served.seed is not None:
        sampling_seed = request_seed(served.seed, "evaluation")

    def play() -> RolloutResult:
        environment_row = setup.row()
        tasks = []
        for table in tables:
            seats = list(served.resolver.seats(table.refs))
            task = {**environment_row, "suite": suite, "seed": table.seed, "seats": seats}
            tasks.append(task)
        return served.client.play(
            tasks,
            num_games=num_games,
            max_tokens=served.max_tokens,
            temperature=served.temperature,
            token_filter=served.token_filter,
            sampling_seed=sampling_seed,
        )

    try:
        result = play()
    except ServerError as error:
        if NOT_HELD not in str(error):
            raise
        served.resolver.forget_guests()
        result = play()
    _check_complete(result, label=label, num_tables=len(tables), num_games=num_games)
    for group in result.groups:
        for episode in group:
            check_replay(setup, episode)
    return result.groups


def _check_complete(result: RolloutResult, *, label: str, num_tables: int, num_games: int) -> None:
    """Raise a ServerError where games are missing from the server's answer."""
    group_sizes = [len(group) for group in result.groups]
    if not result.dropped and group_sizes == [num_games] * num_tables:
        return
    num_wanted = num_games * num_tables
    num_missing = num_wanted - sum(group_sizes)
    raise ServerError(
        f"{label}: {num_missing} of {num_wanted} games were not played "
        f"({_drop_reasons(result.dropped)}), but an evaluation needs every task. Look at the "
        "server's log, then run the same command again."
    )


def _drop_reasons(dropped: Sequence[DroppedGame]) -> str:
    """Return why games were dropped, e.g. "task eval 0: …; task eval 3: …"."""
    if not dropped:
        return "no reason given"
    reasons = []
    for game in dropped[:_MAX_REASONS]:
        reasons.append(f"task {task_name(game.suite, game.seed)}: {game.reason}")
    if len(dropped) > _MAX_REASONS:
        reasons.append("…")
    return "; ".join(reasons)
