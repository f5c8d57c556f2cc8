"""Tasks in, games out: plays the tasks of a request concurrently, one coroutine a game.

A game that fails is played once more from its start and then dropped; the others of its request go on. Three things
end a whole request instead: a request that could never be played, a dead engine, and failure of every single game.
"""

import asyncio
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from hanabi_grpo.errors import (
    GameParameterError,
    HanabiGrpoError,
    ServerError,
    ServerGoneError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.rollout.messages import ReplyRequest
from hanabi_grpo.rollout.tasks import RequestedTask
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.pacing import PacedSampler, Places, Turnstile, in_slices
from hanabi_grpo.server.replies import answer_request
from hanabi_grpo.server.seats import Sampler, ServedPolicy
from hanabi_grpo.server.tables import Table, loras_of, served_seats, wanted_adapters
from hanabi_grpo.types import DroppedGame, Episode, Reply, ReplyKind

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""How often a game is started before it is dropped."""
_MAX_REASON_CHARS = 300
_IMPOSSIBLE = (SettingsError, VersionError, GameParameterError)
"""What these say of one game holds for the whole request, now and at the next attempt."""


class Scheduler:
    """Plays requests on one engine. Each game is its own coroutine."""

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatFormat,
        store: AdapterStore,
        *,
        max_model_len: int,
        games_at_once: int,
        instance_id: str,
        vocab_size: int | None = None,
    ) -> None:
        """Bind the engine, the conversation format and the adapters.

        Args:
            sampler: The engine.
            chat: How conversations become ids.
            store: Which adapters are served.
            max_model_len: Token budget of one conversation.
            games_at_once: How many games may wait on the engine together; see `Places` for who comes first.
            instance_id: Stamped on every episode.
            vocab_size: Rows of the model's token embedding; a reply with an id beyond them fails. None: unchecked.
        """
        self._turnstile = Turnstile()
        self._sampler = PacedSampler(sampler, self._turnstile)
        self._chat, self._store = chat, store
        self._max_model_len, self.instance_id = max_model_len, instance_id
        self.vocab_size = vocab_size
        """Rows of the model's token embedding, None when unknown."""
        self._places = Places(games_at_once)
        self.games_in_flight = 0
        self.games_played = 0
        """Games that came to their end."""
        self.games_retried = 0
        """Games that failed and were started once more."""
        self.games_failed = 0
        """Games that failed at every attempt and were dropped."""

    async def run(
        self, tasks: Sequence[RequestedTask], sampling: SamplingConfig, *, own: bool = False
    ) -> list[list[Episode | DroppedGame]]:
        """Play every game of the tasks.

        Args:
            tasks: What is played; every version that their seats name must be served.
            sampling: Limits and temperature.
            own: Whether the session's trainer asks; its games take free places before all others.

        Returns:
            Per task its games, in order of their numbers.

        Raises:
            SettingsError: Tasks that cannot be played.
            VersionError: A required version is not served; nothing was sampled.
            ServerGoneError: The engine is dead.
            ServerError: Not one of the games could be played.
        """
        self._check_room(sampling.max_tokens)
        played = await self._play_all(tasks, sampling, own)
        games = [game for group in played for game in group]
        dropped = [game for game in games if isinstance(game, DroppedGame)]
        if len(dropped) == len(games):
            first = dropped[0]
            raise ServerError(
                f"none of the {len(dropped)} games could be played, so this is no bad luck; the first, deal "
                f"{first.suite}/{first.seed}, game {first.game}: {first.reason}. "
                "Look at the server's log, and check model, adapters and settings."
            )
        return played

    async def reply(self, wanted: ReplyRequest) -> Reply:
        """Sample one reply, see `answer_request`; it waits for no game's place.

        Raises:
            SettingsError: A request that cannot be answered.
            VersionError: The adapter is not held in that version; nothing was sampled.
            ServerGoneError: The engine is dead.
            ServerError: A sample that cannot be used, or a reply that the engine cancelled.
            NonFiniteError: As `answer_request`.
        """
        self._check_room(wanted.max_tokens)
        where = f"a reply of {wanted.seat}"
        try:
            return await answer_request(
                wanted,
                sampler=self._sampler,
                chat=self._chat,
                store=self._store,
                max_model_len=self._max_model_len,
                vocab_size=self.vocab_size,
            )
        except HanabiGrpoError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._gone(where, "the engine cancelled it") from error
        except Exception as error:
            if self._sampler.is_dead:
                raise self._gone(where, _reason(error)) from error
            raise

    def _check_room(self, max_tokens: int) -> None:
        if max_tokens >= self._max_model_len:
            raise SettingsError(
                f"MAX_COMPLETION_LENGTH={max_tokens}: a reply must be shorter than the conversation that this "
                f"server can hold, HANABI_MAX_MODEL_LEN={self._max_model_len}."
            )

    async def _play_all(
        self, tasks: Sequence[RequestedTask], sampling: SamplingConfig, own: bool
    ) -> list[list[Episode | DroppedGame]]:
        started = []
        place = partial(self._places.place, object(), own=own)
        async with self._store.lease(wanted_adapters(tasks)) as leased:
            tables = []
            async for task in in_slices(tasks):
                seats = task.seats or served_seats(task.task.setup.spec.num_players, leased)
                served = ServedPolicy(
                    self._sampler,
                    self._chat,
                    loras=loras_of(seats, leased),
                    sampling=sampling,
                    max_model_len=self._max_model_len,
                    vocab_size=self.vocab_size,
                )
                tables.append((task, Table(task.task.setup, seats, served)))
            try:
                async with asyncio.TaskGroup() as group:
                    async for task, table in in_slices(tables):
                        games = [group.create_task(self._play(place, task, table, game)) for game in task.games]
                        started.append(games)
                        group.create_task(_report(task, games, table.seats))
            except BaseExceptionGroup as failed:
                raise unwrap(failed) from failed
        return [[game.result() for game in games] for games in started]

    async def _play(
        self, place: Callable[[], AbstractAsyncContextManager[None]], task: RequestedTask, table: Table, game: int
    ) -> Episode | DroppedGame:
        async with place():
            self.games_in_flight += 1
            try:
                await self._turnstile.through()
                for attempt in range(1, ATTEMPTS + 1):
                    played = await self._attempt(task, table, game, attempt)
                    if isinstance(played, Episode):
                        self.games_played += 1
                        return played
                    if attempt < ATTEMPTS:
                        self.games_retried += 1
                self.games_failed += 1
                return played
            finally:
                self.games_in_flight -= 1

    async def _attempt(self, task: RequestedTask, table: Table, game: int, attempt: int) -> Episode | DroppedGame:
        where = f"{task.where}, game {game}"
        try:
            return await play_episode(
                task.task,
                table.players,
                game=game,
                names=table.seats,
                instance_id=self.instance_id,
            )
        except _IMPOSSIBLE:
            raise
        except asyncio.CancelledError as error:
            running = asyncio.current_task()
            if running is None or running.cancelling():
                raise
            # Nobody cancelled this game, so the engine did, and it would look like one that its client gave up.
            raise self._gone(where, "the engine cancelled a reply") from error
        except Exception as error:
            if self._sampler.is_dead:
                raise self._gone(where, _reason(error)) from error
            logger.warning(
                "%s failed, attempt %d of %d (%s): %s",
                where,
                attempt,
                ATTEMPTS,
                "it is played again" if attempt < ATTEMPTS else "it is dropped",
                f"{_reason(error)} [{_place(error)}]",
            )
            return DroppedGame(suite=task.task.split, seed=task.task.seed, game=game, reason=_reason(error))

    def _gone(self, where: str, reason: str) -> ServerError:
        if self._sampler.is_dead:
            return ServerGoneError(f"the engine is dead; {where} ended with {reason}. A new server process is needed.")
        return ServerError(f"{where}: {reason}, though it is alive; the whole request was ended. Ask again.")


async def _report(
    task: RequestedTask, games: Sequence[asyncio.Task[Episode | DroppedGame]], seats: Sequence[str]
) -> None:
    start = time.perf_counter()
    results = await asyncio.gather(*games, return_exceptions=True)
    episodes = [result for result in results if isinstance(result, Episode)]
    dropped = sum(isinstance(result, DroppedGame) for result in results)
    if len(episodes) + dropped < len(results) or not episodes:
        return
    seconds = time.perf_counter() - start
    turns = [turn for episode in episodes for turn in episode.turns]
    kinds = Counter(turn.kind for turn in turns)
    statuses = Counter(str(episode.status) for episode in episodes)
    logger.info(
        "%s: %d games%s, returns %s, %.1f turns, %d illegal, %d unparsable, %s, %.1f s, %.0f tok/s, %s",
        task.where,
        len(episodes),
        f" ({dropped} dropped)" if dropped else "",
        " ".join(f"{sum(one.reward(seat) for one in episodes) / len(episodes):.2f}" for seat in range(len(seats))),
        len(turns) / len(episodes),
        kinds[ReplyKind.ILLEGAL],
        kinds[ReplyKind.UNPARSABLE],
        " ".join(f"{status} {count}" for status, count in sorted(statuses.items())),
        seconds,
        sum(len(turn.reply_ids) for turn in turns) / max(seconds, 1e-9),
        " ".join(seats),
    )


def _reason(error: BaseException) -> str:
    # One line of text that UTF-8 can hold: it travels as JSON and ends up in logs.
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:_MAX_REASON_CHARS].encode("utf-8", "replace").decode("utf-8")


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def unwrap(error: BaseException) -> BaseException:
    """Return the first error of ours inside an exception group, else the first error of all."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [unwrap(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, HanabiGrpoError)), leaves[0])
