"""Request rows in, games out: plays the deals of a request concurrently, one coroutine a game.

A game that fails is played once more from its start and then dropped; the others of its request go on. Three things
end a whole request instead: a request that could never be played, a dead engine, and failure of every single game.
"""

import asyncio
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import (
    GameParameterError,
    HanabiGrpoError,
    ServerError,
    ServerGoneError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.deal_rows import Deal, group_rows
from hanabi_grpo.rollout.episode_check import check_episode
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.runs.wire import dropped_to_outputs, episode_to_outputs
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.pacing import PacedSampler, Places, Turnstile, in_slices
from hanabi_grpo.server.replies import answer_request
from hanabi_grpo.server.reply_request import ReplyRequest
from hanabi_grpo.server.seats import Sampler, ServedPolicy
from hanabi_grpo.server.tables import Table, default_seats, loras_of, wanted_adapters
from hanabi_grpo.types import DroppedGame, Episode, Reply, ReplyKind

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""How often a game is started before it is dropped."""
_INLINE_ROWS = 512
"""Rows that are grouped at once; more of them take long enough to be worth a thread."""
_MODEL = "hanabi_grpo"
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
            vocab_size: Rows of the model's token embedding; a game with an id beyond them is dropped. None: unchecked.
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
        self,
        rows: Sequence[Mapping[str, Any]],
        sampling: SamplingConfig,
        adapters: Mapping[str, str | None] | None,
        *,
        own: bool = False,
    ) -> list[dict[str, Any]]:
        """Play every game that the rows ask for.

        Args:
            rows: Request rows, see `deal_rows`.
            sampling: Limits and temperature.
            adapters: Per player name "adapter@version" that must be served, or None for the base model; no mapping
                at all takes what is served now.
            own: Whether the session's trainer asks; its games take free places before all others.

        Returns:
            One RolloutOutput dict per row, in row order; those of a dropped game say so in `rollout_infos.dropped`.

        Raises:
            SettingsError: Rows that cannot be played.
            VersionError: A required version is not served; nothing was sampled.
            ServerGoneError: The engine is dead.
            ServerError: Not one of the games could be played.
        """
        deals = await asyncio.to_thread(group_rows, rows) if len(rows) > _INLINE_ROWS else group_rows(rows)
        self._check_room(sampling)
        outputs: list[dict[str, Any]] = [{} for _ in rows]
        reasons: list[str] = []
        async for deal, systems, number, game in in_slices(
            _each_game(await self._play_all(deals, sampling, adapters, own))
        ):
            if isinstance(game, Episode):
                answers = episode_to_outputs(game, model=_MODEL, system_prompts=systems)
            else:
                reasons.append(f"deal {game.suite}/{game.seed}, game {game.game}: {game.reason}")
                answers = dropped_to_outputs(game, num_players=deal.config.players, model=_MODEL)
            for player, answer in enumerate(answers):
                outputs[deal.rows[player][number]] = answer
        if reasons and len(reasons) == sum(deal.num_games for deal in deals):
            raise ServerError(
                f"none of the {len(reasons)} games could be played, so this is no bad luck; the first, {reasons[0]}. "
                "Look at the server's log, and check model, adapters and settings."
            )
        return outputs

    async def reply(self, wanted: ReplyRequest) -> Reply:
        """Sample one reply, see `answer_request`; it waits for no game's place.

        Raises:
            SettingsError: A request that cannot be answered.
            VersionError: The adapter is not held in that version; nothing was sampled.
            ServerGoneError: The engine is dead.
            ServerError: A sample that cannot be used, or a reply that the engine cancelled.
            NonFiniteError: As `answer_request`.
        """
        self._check_room(wanted.sampling)
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

    def _check_room(self, sampling: SamplingConfig) -> None:
        if sampling.max_tokens >= self._max_model_len:
            raise SettingsError(
                f"MAX_COMPLETION_LENGTH={sampling.max_tokens}: a reply must be shorter than the conversation that this "
                f"server can hold, HANABI_MAX_MODEL_LEN={self._max_model_len}."
            )

    async def _play_all(
        self, deals: Sequence[Deal], sampling: SamplingConfig, adapters: Mapping[str, str | None] | None, own: bool
    ) -> list[tuple[Deal, Table, list[Episode | DroppedGame]]]:
        started = []
        place = partial(self._places.place, object(), own=own)
        async with self._store.lease(wanted_adapters(deals, adapters)) as leased:
            tables = []
            async for deal in in_slices(deals):
                seats = deal.seats or default_seats(deal.config.players, adapters, leased)
                served = ServedPolicy(
                    self._sampler,
                    self._chat,
                    loras=loras_of(seats, leased),
                    sampling=sampling,
                    config=deal.config,
                    max_model_len=self._max_model_len,
                )
                tables.append((deal, Table(seats, served)))
            try:
                async with asyncio.TaskGroup() as group:
                    async for deal, table in in_slices(tables):
                        games = [
                            group.create_task(self._play(place, deal, table, game)) for game in range(deal.num_games)
                        ]
                        started.append((deal, table, games))
                        group.create_task(_report(deal, games, table.seats))
            except BaseExceptionGroup as failed:
                raise unwrap(failed) from failed
        return [(deal, table, [task.result() for task in games]) for deal, table, games in started]

    async def _play(
        self, place: Callable[[], AbstractAsyncContextManager[None]], deal: Deal, table: Table, game: int
    ) -> Episode | DroppedGame:
        async with place():
            self.games_in_flight += 1
            try:
                await self._turnstile.through()
                for attempt in range(1, ATTEMPTS + 1):
                    played = await self._attempt(deal, table, game, attempt)
                    if isinstance(played, Episode):
                        self.games_played += 1
                        return played
                    if attempt < ATTEMPTS:
                        self.games_retried += 1
                self.games_failed += 1
                return played
            finally:
                self.games_in_flight -= 1

    async def _attempt(self, deal: Deal, table: Table, game: int, attempt: int) -> Episode | DroppedGame:
        where = f"deal {deal.suite}/{deal.seed}, game {game}"
        try:
            episode = await play_episode(
                deal.config,
                table.policies,
                suite=deal.suite,
                seed=deal.seed,
                game=game,
                names=table.seats,
                instance_id=self.instance_id,
            )
            check_episode(episode, vocab_size=self.vocab_size)
            return episode
        except _IMPOSSIBLE:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
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
            return DroppedGame(suite=deal.suite, seed=deal.seed, game=game, reason=_reason(error))

    def _gone(self, where: str, reason: str) -> ServerError:
        if self._sampler.is_dead:
            return ServerGoneError(f"the engine is dead; {where} ended with {reason}. A new server process is needed.")
        return ServerError(f"{where}: {reason}, though it is alive; the whole request was ended. Ask again.")


def _each_game(
    played: Sequence[tuple[Deal, Table, Sequence[Episode | DroppedGame]]],
) -> Iterator[tuple[Deal, list[str], int, Episode | DroppedGame]]:
    for deal, table, games in played:
        systems = table.systems()
        for number, game in enumerate(games):
            yield deal, systems, number, game


async def _report(deal: Deal, games: Sequence[asyncio.Task[Episode | DroppedGame]], seats: Sequence[str]) -> None:
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
        "deal %s/%d: %d games%s, score %.2f (kept %.2f), %.1f turns, %d illegal, %d unparsable, %s, %.1f s, "
        "%.0f tok/s, %s",
        deal.suite,
        deal.seed,
        len(episodes),
        f" ({dropped} dropped)" if dropped else "",
        sum(episode.score for episode in episodes) / len(episodes),
        sum(episode.score_kept for episode in episodes) / len(episodes),
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
