"""Tasks in, games out: plays the tasks of a request concurrently, one coroutine a game.

A game that fails is played once more from its start and then dropped; the others of its request go
on. One with a partner behind a URL is dropped at once: its calls were repeated already, and cost.
Four things end a whole request instead: a request that could never be played, a dead engine,
failure of every single game, and a partner behind a URL that is gone or loses more than half of its
games.
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
"""How often a game is started before it is dropped."""

_IMPOSSIBLE = (SettingsError, VersionError, GameParameterError, PartnerDownError)
"""Errors of one game that hold for the whole request, now and at the next attempt."""

SCORES_AT_ONCE = 64
"""Scores of one request that are in flight at the same time."""

_SHOWN_TEXT = 40
"""Characters of a reply in a message."""
_SHOWN_PROMPT = 60
"""Characters of a prompt in a message."""
_SHOWN_REASON = 300
"""Characters of the reason for which a game was dropped."""
_MIN_SECONDS = 1e-9
"""Keeps tokens per second finite for games that took no time."""

Result = Episode | DroppedGame
_Place = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a place for one game and holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingScore:
    """A reply whose score is still to be computed."""

    prompt: int
    """Number of its prompt in the request."""
    reply: int
    """Number of the reply to that prompt."""


@dataclass(slots=True, kw_only=True)
class _PartnerGames:
    """The games in which one partner behind a URL took a seat."""

    num_games: int = 0
    dropped: list[DroppedGame] = field(default_factory=list)


class Scheduler:
    """Plays requests on a server's engines, each game its own coroutine."""

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
            games_at_once: Most games in play at the same time.
            instance_id: Stamped on every episode; names this server process.
            game_timeout: Seconds after which a game is dropped.
            workers: They play what may block; `close` ends them.
            judge: Scores the games that the session's trainer learns from; None: nobody does.
        """
        self.models = model if isinstance(model, TeamModels) else TeamModels.of_one(model)
        self.instance_id = instance_id
        self._store = store
        self._game_timeout = game_timeout
        self._workers = workers
        self._judge = judge
        self._places = Places(games_at_once, session_is_alive=lambda: store.ownership.is_alive)
        self.threads = Threads()
        """Where requests are read."""
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
            tasks: What is played, and by whom.
            sampling: How replies are sampled.
            own: Whether the request is the session's trainer's; its games take free places before
                all others.
            prompts: Counts what the engine is given.

        Returns:
            The games of each task, in order of their numbers.

        Raises:
            SettingsError: Tasks that cannot be played.
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
        # Late games are no fault of this server or model: the next tasks may be faster.
        if len(dropped) < len(games) or any(game.is_late for game in dropped):
            return
        raise ServerError(
            f"all {len(dropped)} games failed, so this is not a transient error; the first, "
            f"{tasks[0].where}, game {dropped[0].game}: {dropped[0].reason}. Look at the server's "
            "log, and check model, adapters and settings."
        )

    async def reply(
        self, wanted: ReplyRequest, player: str | None = None, *, own: bool = False
    ) -> Reply:
        """Sample one reply outside any game, without waiting for a place.

        The conversation is rebuilt from its ids, sampled from, and forgotten. As in games, the same
        conversation has the same ids.

        Args:
            wanted: The request.
            player: In whose seat the reply is made; None: in nobody's, where a base model of
                several is not known.
            own: Whether the request is the session's trainer's; an engine that sleeps wakes for
                it.

        Raises:
            SettingsError: The chat template refuses the conversation, or ids are not the model's.
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
                    # Beside the event loop: a long text takes a while to encode.
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
            player: In whose seat; None: outside a game.

        Raises:
            SettingsError: It is "base", of several base models, outside a game.
            VersionError: A guest that is not held.
        """
        adapter = seat_adapter(seat)
        if adapter is None:
            return self.models.without_adapter(player)
        name, version = adapter
        if is_frozen(seat):
            return self.models.named(self._store.frozen.find(name, version).base)
        return self.models.of_player(name)

    async def score(self, wanted: ScoreRequest, *, own: bool = False) -> ScoreAnswer:
        """Return how likely given replies are, without sampling.

        Each score takes the place of a game meanwhile, and a request has at most
        `SCORES_AT_ONCE` of them in flight.

        Args:
            wanted: Prompts and replies.
            own: Whether the request is the session's trainer's, see `run`.

        Raises:
            SettingsError: A prompt and its reply are longer than the server's conversations, or
                the chat template refuses the prompt.
            VersionError: The adapter is not served in this version.
            NonFiniteError: A logprob is infinite or not a number.
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
        """Return what an adapter changes that the session's trainer sends for this alone.

        Args:
            upload: The adapter, see `AdapterStore.probing`.
            sequences: Token ids; each sequence is scored from its second one on.

        Raises:
            SettingsError: A sequence is longer than the server's conversations, or has ids that the
                model does not.
            AdapterError: The upload must not be loaded.
            NonFiniteError: A logprob is infinite or not a number.
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
                f"conversation that this server can hold, HANABI_MAX_MODEL_LEN={limit}."
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
        """Play one game, and have it judged, which needs no place of the engine."""
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
        """Play one game, a second time when the first attempt fails."""
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
            players: Who plays, by seat.
            game: Number of the game within its task.
            own: Whether the session's trainer asks.
            attempt: Which attempt this is, from 1.
            attempts: How many there are at most.

        Returns:
            The episode, or the reason why there is none.

        Raises:
            ServerGoneError: The engine is dead.
            ServerError: The engine cancelled a reply.
        """
        where = f"{requested.where}, game {game}"
        progress = Progress()
        with self._engine_faults(where):
            try:
                episode = await self._episode(requested, players, game, progress, own=own)
                # JSON has no number that is not finite: one such game would spoil the answer.
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
        """Play one game to its end, here or, where something in it may block, in a worker.

        Raises:
            LateEpisodeError: It was not over in time.
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
        """Raise a ServerError when the engine is what failed in the block."""
        try:
            yield
        except _IMPOSSIBLE:
            raise
        except asyncio.CancelledError as error:
            running = asyncio.current_task()
            if running is None or running.cancelling():
                raise
            # Nobody cancelled this task, so the engine did; passed on, it would look like a
            # request that its client gave up.
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
    """Add the past turns of a request to a conversation; False when they do not fit."""
    past = list(wanted.turns)
    present: list[EarlierTurn] = []
    if wanted.follows_call:
        # What was said in the present turn has the ids that were sampled, whatever the memory.
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
    """Refuse a reply request with ids that the model does not have."""
    for number, turn in enumerate(wanted.turns):
        highest = max(turn.reply_ids)
        if highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids holds {highest}; this model has ids 0 "
                f"to {vocab_size - 1}. Send the ids that this server sampled."
            )


def _check_sequences(sequences: Sequence[Sequence[int]], model: Model) -> None:
    """Refuse token sequences of a probe that the engine could not compute."""
    longest = max(len(ids) for ids in sequences)
    if longest >= model.max_model_len:
        raise SettingsError(
            f"probe: a sequence of {longest} tokens; conversations of this server hold fewer, "
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
    """Return the log-probability of a whole reply, its end token included, in nats."""
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
            f"has {num_tokens} tokens; conversations of this server hold fewer, "
            f"HANABI_MAX_MODEL_LEN={model.max_model_len}."
        )
    logprobs = await model.sampler.score(prompt_ids, reply_ids, adapter)
    check_logprobs(logprobs, f"score of {reply[:_SHOWN_TEXT]!r}")
    return sum(logprobs)


def _refused_by_template(what: str, error: TemplateError) -> SettingsError:
    """Return the error for a conversation that the model's chat template does not take.

    Args:
        what: Name of the request, e.g. "reply request".
        error: What the template said.
    """
    return SettingsError(
        f"{what}: the chat template of this server's model refuses the conversation ({error}); "
        'send system="" and put its text into the first prompt.'
    )


def _late_game(
    requested: RequestedTask, game: int, progress: Progress, error: LateEpisodeError
) -> DroppedGame:
    """Return a game that has not ended in time, with how far it has come."""
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
    """Return a game whose lessons have the tokens of the players in its seats."""
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
    """Raise a PartnerDownError when most games with a partner behind a URL were dropped.

    The games that are left are no fair sample then: long games make more calls, and fail more
    often.
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
                "answers (hanabi-grpo doctor --role server asks it), then give the same command, "
                "in training with RESUME=latest."
            )


async def _log_group(task: RequestedTask, games: Sequence[asyncio.Task[Result]]) -> None:
    """Log one line on a task once all its games are played."""
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
        f", {num_calls} calls of tools" if num_calls else "",
        num_bad,
        num_tokens / max(seconds, _MIN_SECONDS),
        " ".join(returns),
    )


def _reason(error: BaseException) -> str:
    """Return an error as one line of text that UTF-8 can hold.

    It travels as JSON and ends up in logs.
    """
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return encodable(text[:_SHOWN_REASON])


def _first_error(error: BaseException) -> BaseException:
    """Return the first error of ours inside an exception group, else the first error of all."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first_error(inner) for inner in error.exceptions]
    for leaf in leaves:
        if isinstance(leaf, HanabiGrpoError):
            return leaf
    return leaves[0]
