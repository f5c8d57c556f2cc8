"""Tasks in, games out: plays the tasks of a request concurrently, one coroutine per game.

A game that fails is played once more from its start and then dropped; the other games of its
request continue. A game with a partner behind a URL is dropped at once, since its calls were
already retried and cost tokens. A whole request ends in four cases: it cannot be played at all, the
engine is dead, all games failed, or a partner behind a URL is gone or failed in more than half of
its games.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

from jinja2 import TemplateError

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.judge import Judge
from hanabi_grpo.agents.served_model import (
    Model,
    PromptTokens,
    ServedPlayer,
    TeamModels,
    check_logprobs,
)
from hanabi_grpo.agents.taught import with_lesson_ids, with_teachers
from hanabi_grpo.envs.registry import may_block
from hanabi_grpo.errors import (
    GameParameterError,
    HanabiGrpoError,
    PartnerDownError,
    ServerError,
    ServerGoneError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.loop import Player, Progress, play_episode
from hanabi_grpo.rollout.messages import (
    EarlierTurn,
    ProbeAnswer,
    ProbedCopy,
    ReplyRequest,
    RequestedTask,
    ScoreAnswer,
    ScoredPrompt,
    ScoreRequest,
)
from hanabi_grpo.rollout.sampler import AdapterHandle, SamplingConfig
from hanabi_grpo.rollout.wire import check_episode
from hanabi_grpo.server.adapter_loader import Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.judging import Judging
from hanabi_grpo.server.pacing import Places, in_slices
from hanabi_grpo.server.seats import Tables, wanted_adapters
from hanabi_grpo.server.sleep import engine_for_trainer
from hanabi_grpo.server.threads import Threads
from hanabi_grpo.server.workers.pool import LateEpisodeError, WorkerPool, game_limit
from hanabi_grpo.settings.refs import ScriptRef, UrlRef, is_frozen, seat_adapter
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import DroppedGame, Episode, Reply, ReplyKind

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Number of attempts at a game before it is dropped."""

_IMPOSSIBLE = (SettingsError, VersionError, GameParameterError, PartnerDownError)
"""Errors of one game that apply to the whole request and would recur at the next attempt."""

SCORES_AT_ONCE = 64
"""Scores of one request that may be in flight at the same time."""

_SHOWN_TEXT = 40
"""Characters of a reply in a message."""
_SHOWN_PROMPT = 60
"""Characters of a prompt in a message."""
_SHOWN_REASON = 300
"""Characters of the reason why a game was dropped."""
_MIN_SECONDS = 1e-9
"""Keeps tokens per second finite for games that took no time."""

Result = Episode | DroppedGame
_Place = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a place for one game, and holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingScore:
    """A reply whose score has not been computed yet."""

    prompt: int
    """Index of its prompt in the request."""
    reply: int
    """Index of the reply among those to the prompt."""


@dataclass(slots=True, kw_only=True)
class _PartnerGames:
    """The games in which one partner behind a URL took a seat."""

    num_games: int = 0
    dropped: list[DroppedGame] = field(default_factory=list)


class Scheduler:
    """Plays requests on a server's engines, with a coroutine for each game."""

    def __init__(
        self,
        model: Model | TeamModels,
        store: AdapterStore,
        *,
        games_at_once: int,
        instance_id: str,
        game_timeout: float,
        workers: WorkerPool,
        judge: Judge | None = None,
    ) -> None:
        """Begin idle.

        Args:
            model: The base model that samples, or those of a team.
            store: The adapters that seats may name.
            games_at_once: Maximum number of games in progress.
            instance_id: Recorded in every episode; identifies this server process.
            game_timeout: Seconds after which a game is dropped.
            workers: Worker processes for games that may block; `close` ends them.
            judge: Scores the games that the session's trainer learns from; None for no judge.
        """
        self.models = model if isinstance(model, TeamModels) else TeamModels.of_one(model)
        self.instance_id = instance_id
        self._store = store
        self._game_timeout = game_timeout
        self._workers = workers
        self._judge = judge
        self._places = Places(games_at_once, session_is_alive=lambda: store.ownership.is_alive)
        self.threads = Threads()
        """Threads that read requests."""
        self.games_in_flight = 0
        self.games_played = 0
        self.games_retried = 0
        self.games_failed = 0

    def close(self) -> None:
        """End the worker processes, and let the threads end."""
        self._workers.close()
        self.threads.close()

    async def run(
        self,
        tasks: Sequence[RequestedTask],
        sampling: SamplingConfig,
        *,
        own: bool = False,
        prompts: PromptTokens | None = None,
    ) -> list[list[Result]]:
        """Play the tasks of a request.

        Args:
            tasks: The tasks, with their seats.
            sampling: Sampling parameters of the replies.
            own: Whether the request is the session's trainer's; its games get free places before
                all others.
            prompts: Counter of the prompt tokens.

        Returns:
            The games of each task, in order of their numbers.

        Raises:
            SettingsError: The tasks cannot be played.
            VersionError: A version that a seat names is not served; nothing was sampled.
            PartnerDownError: A partner behind a URL, or the judge, failed too often, or its budget
                is used up.
            ServerError: Every game failed, or the engine is dead (ServerGoneError).
        """
        self._check_room(sampling.max_tokens)
        refs = [ref for task in tasks for ref in task.refs]
        self.models.first.partners.check(refs, own=own, max_tokens=sampling.max_tokens)
        judging = Judging(self._judge, own=own)
        async with engine_for_trainer(self.models.first.sampler, own=own):
            played = await self._play_all(tasks, sampling, own, prompts or PromptTokens(), judging)
        played = judging.finish(played)
        _check_partners(tasks, played)
        self._check_some_played(tasks, played)
        return played

    def _check_some_played(
        self, tasks: Sequence[RequestedTask], played: Sequence[Sequence[Result]]
    ) -> None:
        games = [game for group in played for game in group]
        dropped = [game for game in games if isinstance(game, DroppedGame)]
        # Late games are not a fault of this server or model: the next tasks may be faster.
        if len(dropped) < len(games) or any(game.is_late for game in dropped):
            return
        raise ServerError(
            f"all {len(dropped)} games failed, so this is not a transient error; the first, "
            f"{tasks[0].where}, game {dropped[0].game}: {dropped[0].reason}. See the server's log, "
            "and check model, adapters and settings."
        )

    async def reply(
        self, wanted: ReplyRequest, player: str | None = None, *, own: bool = False
    ) -> Reply:
        """Sample one reply outside any game, without waiting for a place.

        The conversation is rebuilt from its ids, continued by one reply, and not kept. As in games,
        the same conversation has the same ids.

        Args:
            wanted: The request.
            player: The player whose seat replies; None: no seat, so "base" is ambiguous if there
                are several base models.
            own: Whether the request is the session's trainer's; a sleeping engine wakes for it.

        Raises:
            SettingsError: The chat template rejects the conversation, or ids are not the model's.
            VersionError: The adapter is not served in this version.
            ServerError: The engine failed, or its sample is not usable (see `ServedPlayer.ask`).
        """
        self._check_room(wanted.max_tokens)
        adapter = seat_adapter(wanted.seat)
        sampling = SamplingConfig(
            max_tokens=wanted.max_tokens, temperature=wanted.temperature, seed=wanted.seed
        )
        window = len(wanted.turns) + 1 if wanted.fresh else None
        model = self.model_of(wanted.seat, player)
        _check_ids(wanted, model.vocab_size)
        conversation = Conversation(model.chat, wanted.system, window)
        with self._engine_faults(f"a reply of {wanted.seat}"):
            async with (
                engine_for_trainer(self.models.first.sampler, own=own),
                self._store.lease(dict([adapter]) if adapter else {}) as leased,
            ):
                tables = Tables(models=self.models, sampling=sampling, leased=leased)
                served = tables.served(wanted.seat, player)
                try:
                    # In a thread, since a long text takes a while to encode.
                    reading = self.threads.requests(own=own)
                    fits = await reading.run(_rebuild, conversation, wanted, model.max_model_len)
                    if not fits:
                        return Reply(text="", prompt=wanted.prompt, out_of_tokens=True)
                    return await served.ask(
                        conversation, wanted.prompt, follows_call=wanted.follows_call
                    )
                except TemplateError as error:
                    raise _refused_by_template("reply request", error) from error

    def model_of(self, seat: str, player: str | None = None) -> Model:
        """Return the model that samples for a seat reference.

        Args:
            seat: The reference, e.g. "player_0@7" or "base".
            player: The player whose seat it is; None: outside a game.

        Raises:
            SettingsError: The reference is "base" outside a game, and there are several base
                models.
            VersionError: The reference is a guest adapter that is not held.
        """
        adapter = seat_adapter(seat)
        if adapter is None:
            return self.models.without_adapter(player)
        name, version = adapter
        if is_frozen(seat):
            return self.models.named(self._store.frozen.find(name, version).base)
        return self.models.of_player(name)

    async def score(self, wanted: ScoreRequest, *, own: bool = False) -> ScoreAnswer:
        """Return the log-probabilities of given replies, without sampling.

        Each score takes the place of a game while it is computed, and a request has at most
        `SCORES_AT_ONCE` of them in flight.

        Args:
            wanted: Prompts and replies.
            own: Whether the request is the session's trainer's, see `run`.

        Raises:
            SettingsError: A prompt and its reply exceed the server's conversation length, or the
                chat template rejects the prompt.
            VersionError: The adapter is not served in this version.
            NonFiniteError: A logprob is infinite or NaN.
            ServerError: The engine failed.
        """
        adapter = seat_adapter(wanted.seat)
        logprobs = [[math.nan] * len(prompt.replies) for prompt in wanted.prompts]
        unscored = _waiting_scores(wanted)
        place = partial(self._places.place, object(), own=own)
        with self._engine_faults(f"scores of {wanted.seat}"):
            async with (
                engine_for_trainer(self.models.first.sampler, own=own),
                self._store.lease(dict([adapter]) if adapter else {}) as leased,
            ):
                handle = leased[adapter[0]].lora if adapter else None
                model = self.model_of(wanted.seat)

                async def score_some() -> None:
                    for score in unscored:
                        async with place():
                            await model.take_turn()
                            prompt = wanted.prompts[score.prompt]
                            reply = prompt.replies[score.reply]
                            value = await _score_reply(model, prompt, reply, handle)
                            logprobs[score.prompt][score.reply] = value

                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(SCORES_AT_ONCE):
                            group.create_task(score_some())
                except BaseExceptionGroup as errors:
                    raise _first_error(errors) from errors
        return ScoreAnswer(
            logprobs=tuple(map(tuple, logprobs)), version=adapter[1] if adapter else None
        )

    async def probe(self, upload: Upload, sequences: Sequence[Sequence[int]]) -> ProbeAnswer:
        """Score token sequences with and without an adapter that is uploaded only for this.

        Args:
            upload: The adapter, see `AdapterStore.probing`.
            sequences: Token ids; each sequence is scored from its second id on.

        Raises:
            SettingsError: A sequence exceeds the server's conversation length, or has ids that are
                not the model's.
            AdapterError: The upload must not be loaded.
            NonFiniteError: A logprob is infinite or NaN.
            ServerError: The engine failed.
        """
        model = self.models.of_player(upload.adapter)
        _check_sequences(sequences, model)

        async def score_all(adapter: AdapterHandle | None, copy: int) -> list[tuple[float, ...]]:
            scores = []
            for ids in sequences:
                scores.append(model.sampler.score([ids[0]], list(ids[1:]), adapter, copy))
            computed = await asyncio.gather(*scores)
            for logprobs in computed:
                check_logprobs(logprobs, f"probe of {upload.adapter}")
            return computed

        copies = []
        with self._engine_faults(f"a probe of {upload.adapter}"):
            async with (
                engine_for_trainer(self.models.first.sampler, own=True),
                self._store.probing(upload) as held,
            ):
                for copy in range(model.sampler.num_copies):
                    without = await score_all(None, copy)
                    under = await score_all(held.lora, copy)
                    copies.append(ProbedCopy(without=tuple(without), under=tuple(under)))
        return ProbeAnswer(instance_id=self.instance_id, copies=tuple(copies))

    def _check_room(self, max_tokens: int) -> None:
        limit = self.models.first.max_model_len
        if max_tokens >= limit:
            raise SettingsError(
                f"MAX_COMPLETION_LENGTH={max_tokens}: a reply must be shorter than the "
                f"conversation length of this server, HANABI_MAX_MODEL_LEN={limit}. Lower "
                "MAX_COMPLETION_LENGTH, or raise HANABI_MAX_MODEL_LEN of the server."
            )

    async def _play_all(
        self,
        tasks: Sequence[RequestedTask],
        sampling: SamplingConfig,
        own: bool,
        prompts: PromptTokens,
        judging: Judging,
    ) -> list[list[Result]]:
        started: list[list[asyncio.Task[Result]]] = []
        request = object()
        place = partial(self._places.place, request, own=own)
        async with self._store.lease(wanted_adapters(tasks)) as leased:
            tables = Tables(
                models=self.models,
                sampling=sampling,
                leased=leased,
                prompts=prompts,
                own=own,
            )
            try:
                async with asyncio.TaskGroup() as group:
                    async for task in in_slices(tasks):
                        players = tables.seat(task)
                        games = []
                        for game in task.games:
                            coroutine = self._play(place, task, players, game, judging, own=own)
                            games.append(group.create_task(coroutine))
                        started.append(games)
                        group.create_task(_log_group(task, games))
            except BaseExceptionGroup as errors:
                raise _first_error(errors) from errors
        played = []
        for games in started:
            played.append([game.result() for game in games])
        return played

    async def _play(
        self,
        place: _Place,
        task: RequestedTask,
        players: Sequence[Player],
        game: int,
        judging: Judging,
        *,
        own: bool,
    ) -> Result:
        """Play one game and judge it; judging does not need a place."""
        result = await self._play_in_place(place, task, players, game, own=own)
        if not isinstance(result, Episode):
            return result
        judged = await judging.judge(task.task, result)
        if not isinstance(judged, Episode):
            self.games_failed += 1
        return judged

    async def _play_in_place(
        self,
        place: _Place,
        task: RequestedTask,
        players: Sequence[Player],
        game: int,
        *,
        own: bool,
    ) -> Result:
        """Play one game, and once more if the first attempt fails."""
        async with place():
            self.games_in_flight += 1
            try:
                await self.models.first.take_turn()
                has_url = any(isinstance(ref, UrlRef) for ref in task.refs)
                attempts = 1 if has_url else ATTEMPTS
                for attempt in range(1, attempts + 1):
                    result = await self._attempt(
                        task, players, game, own=own, attempt=attempt, attempts=attempts
                    )
                    if isinstance(result, Episode):
                        self.games_played += 1
                        return result
                    if result.is_late:
                        break
                    if attempt < attempts:
                        self.games_retried += 1
                self.games_failed += 1
                return result
            finally:
                self.games_in_flight -= 1

    async def _attempt(
        self,
        requested: RequestedTask,
        players: Sequence[Player],
        game: int,
        *,
        own: bool,
        attempt: int,
        attempts: int,
    ) -> Result:
        """Play one game once.

        Args:
            requested: The task of the game.
            players: The players, by seat.
            game: Number of the game within its task.
            own: Whether the request is the session's trainer's.
            attempt: Number of this attempt, from 1.
            attempts: Maximum number of attempts.

        Returns:
            The episode, or a dropped game with the reason.

        Raises:
            ServerGoneError: The engine is dead.
            ServerError: The engine cancelled a reply.
        """
        where = f"{requested.where}, game {game}"
        progress = Progress()
        with self._engine_faults(where):
            try:
                episode = await self._episode(requested, players, game, progress, own=own)
                # JSON cannot represent non-finite numbers: one such game would break the answer.
                check_episode(episode)
                return episode
            except _IMPOSSIBLE:
                raise
            except Exception as error:
                if self.models.dead is not None:
                    raise
                if isinstance(error, LateEpisodeError):
                    return _late_game(requested, game, progress, error)
                reason = _reason(error)
                consequence = "it is dropped" if attempt == attempts else "it is played again"
                logger.warning(
                    "%s failed, attempt %d of %d (%s): %s",
                    where,
                    attempt,
                    attempts,
                    consequence,
                    reason,
                )
                task = requested.task
                return DroppedGame(suite=task.split, seed=task.seed, game=game, reason=reason)

    async def _episode(
        self,
        requested: RequestedTask,
        players: Sequence[Player],
        game: int,
        progress: Progress,
        *,
        own: bool,
    ) -> Episode:
        """Play one game to its end, here or, if its code may block, in a worker.

        Raises:
            LateEpisodeError: It did not finish in time.
        """
        if not _needs_worker(requested):
            async with game_limit(self._game_timeout, of=self._game_timeout):
                episode = await play_episode(
                    requested.task,
                    with_teachers(players, requested.teachers, requested.task.setup),
                    game=game,
                    names=requested.seats,
                    instance_id=self.instance_id,
                    progress=progress,
                )
            return _with_lesson_ids(episode, players)
        scripts = [ref.name if isinstance(ref, ScriptRef) else None for ref in requested.refs]
        episode = await self._workers.play(
            requested.task,
            players,
            scripts=scripts,
            teachers=requested.teachers,
            game=game,
            names=requested.seats,
            instance_id=self.instance_id,
            progress=progress,
            for_session=own,
            timeout=self._game_timeout,
        )
        return _with_lesson_ids(episode, players)

    @contextlib.contextmanager
    def _engine_faults(self, where: str) -> Iterator[None]:
        """Raise a ServerError if the failure in the block is the engine's."""
        try:
            yield
        except _IMPOSSIBLE:
            raise
        except asyncio.CancelledError as error:
            running = asyncio.current_task()
            if running is None or running.cancelling():
                raise
            # This task was not cancelled from outside, so the engine did it; passed on, it would
            # look like a request that its client cancelled.
            raise self._engine_error(where, "the engine cancelled a reply") from error
        except Exception as error:
            if self.models.dead is not None:
                raise self._engine_error(where, _reason(error)) from error
            raise

    def _engine_error(self, where: str, reason: str) -> ServerError:
        if self.models.dead is not None:
            return ServerGoneError(
                f"the engine is dead; {where} ended with {reason}. A new server process is needed."
            )
        return ServerError(
            f"{where}: {reason}, but the engine is alive; the whole request was cancelled. Send it "
            "again."
        )


def _rebuild(conversation: Conversation, wanted: ReplyRequest, max_model_len: int) -> bool:
    """Add the past turns of a request to a conversation; return False if they do not fit."""
    past = list(wanted.turns)
    present: list[EarlierTurn] = []
    if wanted.follows_call:
        # Replies of the current turn have their sampled ids, whatever the memory.
        while past and (not present or present[0].follows_call):
            present.insert(0, past.pop())
    for turn in past:
        conversation.remember(turn.prompt, list(turn.reply_ids), follows_call=turn.follows_call)
        if len(conversation.ids) > max_model_len:
            return False
    for turn in present:
        conversation.ask(turn.prompt, follows_call=turn.follows_call)
        conversation.answer(list(turn.reply_ids))
    return len(conversation.ids) <= max_model_len


def _check_ids(wanted: ReplyRequest, vocab_size: int) -> None:
    """Reject a reply request with ids that the model does not have."""
    for number, turn in enumerate(wanted.turns):
        highest = max(turn.reply_ids)
        if highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids contains {highest}; this model has ids 0 "
                f"to {vocab_size - 1}. Send the ids that this server sampled."
            )


def _check_sequences(sequences: Sequence[Sequence[int]], model: Model) -> None:
    """Reject token sequences of a probe that the engine could not score."""
    longest = max(len(ids) for ids in sequences)
    if longest >= model.max_model_len:
        raise SettingsError(
            f"probe: a sequence has {longest} tokens; it must have fewer than "
            f"HANABI_MAX_MODEL_LEN={model.max_model_len}."
        )
    highest = max(max(ids) for ids in sequences)
    if highest >= model.vocab_size:
        raise SettingsError(
            f"probe: token id {highest}; this model has ids 0 to {model.vocab_size - 1}."
        )


async def _score_reply(
    model: Model, prompt: ScoredPrompt, reply: str, adapter: AdapterHandle | None
) -> float:
    """Return the log-probability of a whole reply, including its end token, in nats."""
    chat = model.chat
    try:
        prompt_ids = chat.open(prompt.system, prompt.prompt)
    except TemplateError as error:
        raise _refused_by_template("score request", error) from error
    reply_ids = list(chat.said(reply))
    num_tokens = len(prompt_ids) + len(reply_ids)
    if num_tokens >= model.max_model_len:
        raise SettingsError(
            f"score request: {prompt.prompt[:_SHOWN_PROMPT]!r} with {reply[:_SHOWN_TEXT]!r} "
            f"has {num_tokens} tokens; it must have fewer than "
            f"HANABI_MAX_MODEL_LEN={model.max_model_len}."
        )
    logprobs = await model.sampler.score(prompt_ids, reply_ids, adapter)
    check_logprobs(logprobs, f"score of {reply[:_SHOWN_TEXT]!r}")
    return sum(logprobs)


def _refused_by_template(what: str, error: TemplateError) -> SettingsError:
    """Return the error for a conversation that the model's chat template rejects.

    Args:
        what: Name of the request, e.g. "reply request".
        error: The template's error.
    """
    return SettingsError(
        f"{what}: the chat template of this server's model rejects the conversation ({error}); "
        'send system="" and put its text into the first prompt.'
    )


def _late_game(
    requested: RequestedTask, game: int, progress: Progress, error: LateEpisodeError
) -> DroppedGame:
    """Return a dropped game that did not finish in time, with its progress."""
    reason = f"{error}, {progress.num_turns} turns taken"
    logger.warning("%s, game %d: %s; it is dropped", requested.where, game, reason)
    task = requested.task
    return DroppedGame(
        suite=task.split,
        seed=task.seed,
        game=game,
        reason=reason,
        is_late=True,
        num_turns=progress.num_turns,
        rewards=tuple(progress.rewards),
    )


def _with_lesson_ids(episode: Episode, players: Sequence[Player]) -> Episode:
    """Return a game whose lessons are encoded with the tokenizers of its players."""
    served = [player if isinstance(player, ServedPlayer) else None for player in players]
    chats = [player.model.chat if player is not None else None for player in served]
    longest = [player.sampling.max_tokens for player in served if player is not None]
    return with_lesson_ids(episode, chats, max(longest, default=0))


def _needs_worker(requested: RequestedTask) -> bool:
    """Tell whether the environment, a script or a teacher of a task may block."""
    setup = requested.task.setup
    slow = setup.environment.slow_policies
    if any(isinstance(ref, ScriptRef) and ref.name in slow for ref in requested.refs):
        return True
    if any(teacher is not None and teacher.policy in slow for teacher in requested.teachers):
        return True
    return may_block(setup)


def _waiting_scores(wanted: ScoreRequest) -> Iterator[_WaitingScore]:
    """Yield every reply of a request, prompt by prompt."""
    for number, prompt in enumerate(wanted.prompts):
        for index in range(len(prompt.replies)):
            yield _WaitingScore(prompt=number, reply=index)


def _check_partners(tasks: Sequence[RequestedTask], played: Sequence[Sequence[Result]]) -> None:
    """Raise a PartnerDownError if most games with a partner behind a URL were dropped.

    The remaining games would be a biased sample: long games make more calls, and fail more often.
    """
    partners: dict[str, _PartnerGames] = {}
    for task, group in zip(tasks, played, strict=True):
        urls = dict.fromkeys(str(ref) for ref in task.refs if isinstance(ref, UrlRef))
        dropped = [game for game in group if isinstance(game, DroppedGame)]
        for url in urls:
            games = partners.setdefault(url, _PartnerGames())
            games.num_games += len(group)
            games.dropped += dropped
    for url, games in partners.items():
        if 2 * len(games.dropped) > games.num_games:
            raise PartnerDownError(
                f"{url}: {len(games.dropped)} of {games.num_games} games with it were dropped, "
                f"more than half, the first with: {games.dropped[0].reason} Make sure that it "
                "responds (hanabi-grpo doctor --role server checks it), then run the same command "
                "again, in training with RESUME=latest."
            )


async def _log_group(task: RequestedTask, games: Sequence[asyncio.Task[Result]]) -> None:
    """Log one line about a task when all its games are finished."""
    start = time.perf_counter()
    results = await asyncio.gather(*games, return_exceptions=True)
    seconds = time.perf_counter() - start
    if any(isinstance(result, BaseException) for result in results):
        return
    episodes = [result for result in results if isinstance(result, Episode)]
    if not episodes:
        return
    num_dropped = len(results) - len(episodes)
    turns = [turn for episode in episodes for turn in episode.turns]
    num_calls = sum(turn.is_call for turn in turns)
    num_bad = sum(turn.kind is not ReplyKind.LEGAL for turn in turns)
    num_tokens = sum(len(turn.reply_ids) for turn in turns)
    returns = []
    for player, seat in enumerate(task.seats):
        mean = sum(episode.reward(player) for episode in episodes) / len(episodes)
        returns.append(f"{seat.removeprefix('player_')} {mean:.2f}")
    logger.info(
        "%s: %d games%s, %.1f turns%s, %d bad, %.0f tok/s, returns %s",
        task.where,
        len(episodes),
        f" ({num_dropped} dropped)" if num_dropped else "",
        (len(turns) - num_calls) / len(episodes),
        f", {num_calls} tool calls" if num_calls else "",
        num_bad,
        num_tokens / max(seconds, _MIN_SECONDS),
        " ".join(returns),
    )


def _reason(error: BaseException) -> str:
    """Return an error as one line of valid UTF-8 text, for JSON and logs."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return encodable(text[:_SHOWN_REASON])


def _first_error(error: BaseException) -> BaseException:
    """Return the first HanabiGrpoError in an exception group, or else the first error."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_error(inner) for inner in error.exceptions]
    for leaf in leaves:
        if isinstance(leaf, HanabiGrpoError):
            return leaf
    return leaves[0]
