"""Tasks in, games out: plays the tasks of a request concurrently, one coroutine a game.

A game that fails is played once more from its start and then dropped; the others of its request go
on. One with a partner behind a URL is dropped at once: its calls were made again already, and cost.
Four things end a whole request instead: a request that could never be played, a dead engine,
failure of every single game, and a partner behind a URL that is gone or loses more than half of its
games."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from jinja2 import TemplateError

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.served_model import Model, PromptTokens
from hanabi_grpo.errors import (
    GameParameterError,
    HanabiGrpoError,
    PartnerDownError,
    ServerError,
    ServerGoneError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.loop import Player, play_episode
from hanabi_grpo.rollout.messages import (
    ReplyRequest,
    RequestedTask,
    ScoreAnswer,
    ScoredPrompt,
    ScoreRequest,
)
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.pacing import Places, in_slices
from hanabi_grpo.server.seats import Tables, wanted_adapters
from hanabi_grpo.settings.refs import is_url, seat_adapter
from hanabi_grpo.types import DroppedGame, Episode, Reply, ReplyKind

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""How often a game is started before it is dropped."""
_IMPOSSIBLE = (SettingsError, VersionError, GameParameterError, PartnerDownError)
"""What these say of one game holds for the whole request, now and at the next attempt."""


class Scheduler:
    """Plays requests on one engine, each game its own coroutine; `instance_id` is stamped on every
    episode.
    """

    def __init__(
        self, model: Model, store: AdapterStore, *, games_at_once: int, instance_id: str
    ) -> None:
        self.model, self.instance_id = model, instance_id
        self._store, self._places = store, Places(games_at_once)
        self.games_in_flight = 0
        self.games_played = 0
        self.games_retried = 0
        self.games_failed = 0

    async def run(
        self,
        tasks: Sequence[RequestedTask],
        sampling: SamplingConfig,
        *,
        own: bool = False,
        prompts: PromptTokens | None = None,
    ) -> list[list[Episode | DroppedGame]]:
        """Return the games of each task; those of the session's trainer (`own`) take free places
        before all others.

        What the engine is given is counted in `prompts`.

        Raises: SettingsError: Tasks that cannot be played. VersionError: A version that a seat
            names is not served; nothing was sampled. PartnerDownError: A partner behind a URL
            failed too often, or its budget is used up. ServerError: Not one of the games could be
            played, or the engine is dead (ServerGoneError).
        """
        self._check_room(sampling.max_tokens)
        self.model.partners.check(ref for task in tasks for ref in task.refs)
        played = await self._play_all(tasks, sampling, own, prompts or PromptTokens())
        _check_partners(tasks, played)
        games = [game for group in played for game in group]
        dropped = [game for game in games if isinstance(game, DroppedGame)]
        if len(dropped) == len(games):
            raise ServerError(
                f"none of the {len(dropped)} games could be played, so this is no bad luck; the "
                f"first, {tasks[0].where}"
                f", game {dropped[0].game}: {dropped[0].reason}. Look at the server's log, and "
                "check model, adapters "
                "and settings."
            )
        return played

    async def reply(self, wanted: ReplyRequest) -> Reply:
        """Sample one reply outside any game; it waits for no game's place. Raises as `run` and
        `ServedPlayer.ask`.

        The conversation is rebuilt from its ids, sampled from, and forgotten. As in games, the same
        conversation has the same ids."""
        self._check_room(wanted.max_tokens)
        named = seat_adapter(wanted.seat)
        sampling = SamplingConfig(max_tokens=wanted.max_tokens, temperature=wanted.temperature)
        window = len(wanted.turns) + 1 if wanted.fresh else None
        conversation = Conversation(self.model.chat, wanted.system, window)
        with self._engine_faults(f"a reply of {wanted.seat}"):
            async with self._store.lease(dict([named]) if named else {}) as leased:
                player = Tables(model=self.model, sampling=sampling, leased=leased).served(
                    wanted.seat
                )
                try:
                    for turn in wanted.turns:
                        conversation.remember(turn.prompt, list(turn.reply_ids))
                        if len(conversation.ids) > self.model.max_model_len:
                            return Reply(text="", prompt=wanted.prompt, out_of_tokens=True)
                    return await player.ask(conversation, wanted.prompt)
                except TemplateError as error:
                    raise SettingsError(
                        "reply request: the chat template of this server's model refuses the "
                        f"conversation ({error}); "
                        'send system="" and put its text into the first prompt.'
                    ) from error

    async def score(self, wanted: ScoreRequest) -> ScoreAnswer:
        """Return how likely given replies are; nothing is sampled, and no game's place is waited
        for.
        """
        named = seat_adapter(wanted.seat)
        chat, sampler = self.model.chat, self.model.sampler

        async def scored(one: ScoredPrompt, reply: str) -> float:
            prompt_ids = chat.open(one.system, one.prompt)
            reply_ids = [*chat.tokenizer.encode(reply, add_special_tokens=False), chat.eos_id]
            if len(prompt_ids) + len(reply_ids) >= self.model.max_model_len:
                raise SettingsError(
                    f"score request: {one.prompt[:60]!r} with {reply[:40]!r} has "
                    f"{len(prompt_ids) + len(reply_ids)} "
                    "tokens; conversations of this server hold fewer, "
                    f"HANABI_MAX_MODEL_LEN={self.model.max_model_len}."
                )
            return sum(await sampler.logprobs(prompt_ids, reply_ids, lora))

        with self._engine_faults(f"scores of {wanted.seat}"):
            async with self._store.lease(dict([named]) if named else {}) as leased:
                lora = leased[named[0]].lora if named else None
                every = [(one, reply) for one in wanted.prompts for reply in one.replies]
                found = iter(await asyncio.gather(*(scored(one, reply) for one, reply in every)))
        logprobs = tuple(tuple(next(found) for _ in one.replies) for one in wanted.prompts)
        return ScoreAnswer(logprobs=logprobs, version=named[1] if named else None)

    def _check_room(self, max_tokens: int) -> None:
        most = self.model.max_model_len
        if max_tokens >= most:
            raise SettingsError(
                f"MAX_COMPLETION_LENGTH={max_tokens}: a reply must be shorter than the "
                "conversation that this "
                f"server can hold, HANABI_MAX_MODEL_LEN={most}."
            )

    async def _play_all(
        self,
        tasks: Sequence[RequestedTask],
        sampling: SamplingConfig,
        own: bool,
        prompts: PromptTokens,
    ) -> list[list[Episode | DroppedGame]]:
        started = []
        place = partial(self._places.place, object(), own=own)
        async with self._store.lease(wanted_adapters(tasks)) as leased:
            tables = Tables(model=self.model, sampling=sampling, leased=leased, prompts=prompts)
            try:
                async with asyncio.TaskGroup() as group:
                    async for task in in_slices(tasks):
                        players = tables.seat(task)
                        games = [
                            group.create_task(self._play(place, task, players, game))
                            for game in task.games
                        ]
                        started.append(games)
                        group.create_task(_report(task, games))
            except BaseExceptionGroup as failed:
                raise _first(failed) from failed
        return [[game.result() for game in games] for games in started]

    async def _play(
        self,
        place: Callable[[], AbstractAsyncContextManager[None]],
        task: RequestedTask,
        players: Sequence[Player],
        game: int,
    ) -> Episode | DroppedGame:
        async with place():
            self.games_in_flight += 1
            try:
                await self.model.take_turn()
                attempts = 1 if any(map(is_url, task.seats)) else ATTEMPTS
                for attempt in range(1, attempts + 1):
                    played = await self._attempt(
                        task, players, game, f"{attempt} of {attempts}", attempt == attempts
                    )
                    if isinstance(played, Episode):
                        self.games_played += 1
                        return played
                    if attempt < attempts:
                        self.games_retried += 1
                self.games_failed += 1
                return played
            finally:
                self.games_in_flight -= 1

    async def _attempt(
        self,
        asked: RequestedTask,
        players: Sequence[Player],
        game: int,
        attempt: str,
        is_last: bool,
    ) -> Episode | DroppedGame:
        task, where = asked.task, f"{asked.where}, game {game}"
        with self._engine_faults(where):
            try:
                return await play_episode(
                    task, players, game=game, names=asked.seats, instance_id=self.instance_id
                )
            except _IMPOSSIBLE:
                raise
            except Exception as error:
                if self.model.sampler.is_dead:
                    raise
                reason, then = _reason(error), "it is dropped" if is_last else "it is played again"
                logger.warning("%s failed, attempt %s (%s): %s", where, attempt, then, reason)
                return DroppedGame(suite=task.split, seed=task.seed, game=game, reason=reason)

    @contextlib.contextmanager
    def _engine_faults(self, where: str) -> Iterator[None]:
        """Say it as such when the engine is what failed in the block."""
        try:
            yield
        except _IMPOSSIBLE:
            raise
        except asyncio.CancelledError as error:
            running = asyncio.current_task()
            if running is None or running.cancelling():
                raise
            # Nobody cancelled this, so the engine did, and it would look like one that its client
            # gave up.
            raise self._gone(where, "the engine cancelled a reply") from error
        except Exception as error:
            if self.model.sampler.is_dead:
                raise self._gone(where, _reason(error)) from error
            raise

    def _gone(self, where: str, reason: str) -> ServerError:
        if self.model.sampler.is_dead:
            return ServerGoneError(
                f"the engine is dead; {where} ended with {reason}. A new server process is needed."
            )
        return ServerError(
            f"{where}: {reason}, though it is alive; the whole request was ended. Ask again."
        )


def _check_partners(
    tasks: Sequence[RequestedTask], played: Sequence[Sequence[Episode | DroppedGame]]
) -> None:
    # The games that are left are no fair sample when most are missing: long games make more calls,
    # and fail more often.
    for word in dict.fromkeys(seat for task in tasks for seat in filter(is_url, task.seats or ())):
        of_it = [
            group for task, group in zip(tasks, played, strict=True) if word in (task.seats or ())
        ]
        lost = [game for group in of_it for game in group if isinstance(game, DroppedGame)]
        if 2 * len(lost) > sum(map(len, of_it)):
            raise PartnerDownError(
                f"{word}: {len(lost)} of {sum(map(len, of_it))} games with it were dropped, more "
                "than half, the first "
                f"with: {lost[0].reason} Make sure that it answers (hanabi-grpo doctor --role "
                "server asks it), then "
                "give the same command, in training with RESUME=latest."
            )


async def _report(
    task: RequestedTask, games: Sequence[asyncio.Task[Episode | DroppedGame]]
) -> None:
    start = time.perf_counter()
    results = await asyncio.gather(*games, return_exceptions=True)
    episodes = [result for result in results if isinstance(result, Episode)]
    if not episodes or any(isinstance(result, BaseException) for result in results):
        return
    seconds, count = time.perf_counter() - start, len(episodes)
    turns = [turn for episode in episodes for turn in episode.turns]
    bad = sum(turn.kind is not ReplyKind.LEGAL for turn in turns)
    returns = (
        sum(one.reward(player) for one in episodes) / count for player in range(len(task.seats))
    )
    dropped = f" ({len(results) - count} dropped)" * (len(results) > count)
    logger.info(
        f"{task.where}: {count} games{dropped}, {len(turns) / count:.1f} turns, {bad} bad, "
        f"{sum(len(turn.reply_ids) for turn in turns) / max(seconds, 1e-9):.0f} tok/s, returns "
        + " ".join(
            f"{seat.removeprefix('player_')} {value:.2f}"
            for seat, value in zip(task.seats, returns, strict=True)
        )
    )


def _reason(error: BaseException) -> str:
    # One line of text that UTF-8 can hold: it travels as JSON and ends up in logs.
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:300].encode("utf-8", "replace").decode("utf-8")


def _first(error: BaseException) -> BaseException:
    """Return the first error of ours inside an exception group, else the first error of all."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, HanabiGrpoError)), leaves[0])
