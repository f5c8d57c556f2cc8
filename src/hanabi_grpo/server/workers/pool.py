"""The server's side of worker processes: assigns episodes to workers, and handles blocked ones.

A worker that runs one episode's code for longer than its patience is *blocked*. Its other episodes
move to another worker at once; after the first time this happens, a spare worker is kept, so that
they do not have to wait for a new process. The blocking episode may continue until the call has
taken HANABI_CALL_TIMEOUT, or the episode HANABI_GAME_TIMEOUT; then the worker is killed. An
episode's time does not include waiting for a worker or for another episode's call.
"""

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo import errors
from hanabi_grpo.agents.taught import SayingSeat
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.errors import HanabiGrpoError, ServerError
from hanabi_grpo.rollout.loop import Player, PlayerSeat, Progress
from hanabi_grpo.server.workers.current_call import CurrentCall, Running, create_memory
from hanabi_grpo.server.workers.forking import Child, ForkServer
from hanabi_grpo.server.workers.messages import (
    Answer,
    Ask,
    Cancel,
    Ended,
    Failed,
    FromWorker,
    Ready,
    Start,
    WrongTypeError,
    read_from_worker,
    write,
)
from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import Episode, Reply

logger = logging.getLogger(__name__)

PATIENCE = 0.05
"""Seconds for which one episode may block its worker."""
FIRST_PATIENCE = 10.0
"""The same for a worker's first call, which imports the environment."""
MAX_BLOCKED = 4
"""Maximum number of processes per worker, including blocked ones."""
_START_SECONDS = 120.0
"""Time limit for the start of a new process, including its imports."""
_MAX_FAILED_STARTS = 3
"""Consecutive processes that end during start-up, after which episodes fail."""
_LOOK_SECONDS = 0.01
"""Time between two checks of the running calls."""


class _MovedError(Exception):
    """The episode must continue in another worker."""

    def __init__(self, *, since: float) -> None:
        """Hold since when the episode has been held up.

        Args:
            since: Time of `time.monotonic`.
        """
        super().__init__(since)
        self.since = since


class EpisodeFailedError(RuntimeError):
    """The episode ended with an exception of the environment, or its worker died."""


class LateEpisodeError(Exception):
    """The episode did not finish in time."""


@contextlib.asynccontextmanager
async def game_limit(seconds: float, *, of: float) -> AsyncIterator[None]:
    """Raise a `LateEpisodeError` if the block takes longer.

    Args:
        seconds: Remaining time of the game.
        of: HANABI_GAME_TIMEOUT, for the message.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise LateEpisodeError(f"not over after HANABI_GAME_TIMEOUT={of:g} s") from error


class _AskedMessage(Observation):
    """A model's observation as sent by the worker: only the message."""

    __slots__ = ("_follows_call", "_text")

    def __init__(self, ask: Ask) -> None:
        """Hold the message of an `Ask`."""
        self._text = ask.message
        self.player = ask.seat
        self.window = ask.window
        self._follows_call = ask.follows_call

    @property
    def follows_call(self) -> bool:
        """See `Observation.follows_call`."""
        return self._follows_call

    def message(self) -> str:
        """Return the message; the worker chose its kind by `window`."""
        return self._text


@dataclass(slots=True, kw_only=True)
class _Call:
    """One turn of a model's seat: its message, and its reply once there is one."""

    message: str
    reply: asyncio.Task[Reply]


@dataclass(slots=True, kw_only=True, eq=False)
class _Play:
    """An episode in progress, whichever worker plays it."""

    task: Task[Any]
    game: int
    names: tuple[str, ...]
    scripts: tuple[str | None, ...]
    teachers: tuple[SeatTeacher | None, ...]
    instance_id: str
    seats: tuple[PlayerSeat | None, ...]
    """For each seat, the player's seat in the server; None: a script in the worker."""
    progress: Progress
    calls: tuple[list[_Call], ...]
    """The turns of each seat so far. They are kept when the episode moves, so that it is replayed
    with the same replies."""
    num_asked: list[int]
    """How many of these turns of each seat the current worker has requested."""
    result: "asyncio.Future[Episode]"
    """Result of the episode in the current worker."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """One worker process."""

    process: Child
    writer: asyncio.StreamWriter
    current_call: CurrentCall
    for_session: bool
    """Whether it plays for the session's trainer; otherwise for guests."""
    plays: dict[int, _Play] = field(default_factory=dict)
    """Its episodes by number."""
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has started or ended."""
    is_closed: bool = False
    """Whether it has ended, or is being ended."""
    watch: "asyncio.Task[None] | None" = None
    """Task that reads its messages."""
    running: Running | None = None
    """The call that it was in at the last look."""
    running_since: float = 0.0
    """Time of the first look at this call. A time noted by the worker would also count how long
    both processes waited for a busy core."""

    def blocked_by(self) -> int | None:
        """Look at the worker; return the number of the episode that blocks it, None for none."""
        if self.is_closed:
            return None
        running = self.current_call.read()
        now = time.monotonic()
        if running != self.running:
            self.running = running
            self.running_since = now
        if running is None:
            return None
        patience = FIRST_PATIENCE if running.call == 1 else PATIENCE
        return running.episode if now - self.running_since > patience else None


class WorkerPool:
    """Worker processes, started when they are first needed. Used from one event loop."""

    def __init__(
        self, *, call_timeout: float, session_workers: int, guest_workers: int = 1
    ) -> None:
        """Start nothing yet.

        Args:
            call_timeout: Seconds that one call of an environment or a script may take.
            session_workers: Number of workers for the session's trainer. While one of them is
                blocked, another may be started in its place.
            guest_workers: Number of workers for all other clients.
        """
        self._call_timeout = call_timeout
        self._limits = {True: session_workers, False: guest_workers}
        self._processes: list[_Worker] = []
        """All live workers, including those that are starting."""
        self._workers: list[_Worker] = []
        """Workers that have started."""
        self._starting = {True: 0, False: 0}
        """Number of workers being started, for the session (True) and for guests (False)."""
        self._has_blocked = {True: False, False: False}
        """Whether a worker of the session (True) or of guests (False) has ever been blocked."""
        self._failed_starts = 0
        """Number of consecutive failed starts."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()
        self._watcher: asyncio.Task[None] | None = None
        self._fork_server: ForkServer | None = None
        self._fork_server_lock = asyncio.Lock()
        """Held while the fork server is being started."""

    async def play(
        self,
        task: Task[Any],
        players: Sequence[Player],
        *,
        scripts: Sequence[str | None],
        teachers: Sequence[SeatTeacher | None] = (),
        game: int,
        names: Sequence[str],
        instance_id: str,
        progress: Progress,
        for_session: bool,
        timeout: float,
    ) -> Episode:
        """Play one episode in a worker, as `rollout.loop.play_episode` does.

        If the episode's time is up, or the caller is cancelled, while its code blocks the worker,
        the worker is killed.

        Args:
            task: The task that is played.
            players: One per seat; scripts play in the worker instead.
            scripts: The name of each seat's script; None: a model.
            teachers: The teacher of each seat, None for none; empty: no seat has a teacher.
            game: Number of the episode within the task's group.
            names: The policy of each seat, for the record.
            instance_id: Identifier of the server process, for the record.
            progress: Updated at every reply.
            for_session: Whether the request is the session's trainer's.
            timeout: Seconds that the episode may take.

        Raises:
            LateEpisodeError: The episode, or one of its calls, did not finish in time.
            EpisodeFailedError: The environment raised, or its process died.
            HanabiGrpoError: The environment or a player raised this error.
        """
        seats: list[PlayerSeat | None] = []
        for seat, player in enumerate(players):
            is_model = scripts[seat] is None
            seats.append(player.seat(seat, task=task, game=game) if is_model else None)
        play = _Play(
            task=task,
            game=game,
            names=tuple(names),
            scripts=tuple(scripts),
            teachers=tuple(teachers),
            instance_id=instance_id,
            seats=tuple(seats),
            progress=progress,
            calls=tuple([] for _ in seats),
            num_asked=[0] * len(seats),
            result=asyncio.get_running_loop().create_future(),
        )
        remaining = timeout
        try:
            while True:
                worker = await self._choose(for_session)
                start = time.monotonic()
                try:
                    async with game_limit(remaining, of=timeout):
                        return await self._play_in(worker, play)
                except _MovedError as moved:
                    # The time after that belongs to another episode's call.
                    remaining -= max(0.0, moved.since - start)
        finally:
            calls = [call.reply for seat_calls in play.calls for call in seat_calls]
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _play_in(self, worker: _Worker, play: _Play) -> Episode:
        """Play an episode in one worker; raise `_MovedError` if it must continue elsewhere."""
        number = next(self._numbers)
        play.num_asked = [0] * len(play.seats)
        play.result = asyncio.get_running_loop().create_future()
        worker.plays[number] = play
        start = Start(
            number=number,
            env=play.task.environment.name,
            env_config=play.task.config.model_dump(mode="json"),
            split=play.task.split,
            seed=play.task.seed,
            game=play.game,
            scripts=play.scripts,
            teachers=play.teachers,
            names=play.names,
            instance_id=play.instance_id,
        )
        try:
            # Fails for values that MessagePack cannot encode, e.g. integers of more than 64 bits.
            write(worker.writer, start)
            return await play.result
        except asyncio.CancelledError:
            if worker.blocked_by() == number:
                self._kill_blocked(worker, play)
            raise
        finally:
            worker.plays.pop(number, None)
            if not worker.is_closed:
                write(worker.writer, Cancel(number=number))

    def _kill_blocked(self, worker: _Worker, play: _Play) -> None:
        logger.warning(
            "worker %d: killed because a call of %s has not returned for %.1f s",
            worker.process.pid,
            play.task.environment.name,
            time.monotonic() - worker.running_since,
        )
        self._end(worker)

    async def _choose(self, for_session: bool) -> _Worker:
        """Return the unblocked worker with the fewest episodes; start workers if needed.

        Once a worker has been blocked, a spare worker beyond the limit is kept: when another is
        blocked, its episodes move there without waiting for a new process.

        Waits while all allowed workers are starting or blocked.

        Raises:
            EpisodeFailedError: New processes end during start-up.
        """
        limit = self._limits[for_session]
        while True:
            num_processes = self._starting[for_session]
            free = []
            for worker in self._workers:
                if worker.for_session == for_session:
                    num_processes += 1
                    if worker.blocked_by() is None:
                        free.append(worker)
            num_wanted = limit + self._has_blocked[for_session]
            num_missing = num_wanted - len(free) - self._starting[for_session]
            for _ in range(min(num_missing, MAX_BLOCKED * limit - num_processes)):
                self._starting[for_session] += 1
                start = asyncio.create_task(self._start(for_session))
                self._tasks.add(start)
                start.add_done_callback(self._tasks.discard)
            if free:
                return min(free, key=lambda worker: len(worker.plays))
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise EpisodeFailedError(
                    f"{self._failed_starts} worker processes died during start-up; see the "
                    "server's log"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _start(self, for_session: bool) -> None:
        """Start a worker, and make it available once it is ready."""
        worker = None
        try:
            async with asyncio.timeout(_START_SECONDS):
                worker = await self._spawn(for_session)
                await worker.is_ready.wait()
            if worker.is_closed:
                raise EpisodeFailedError("the process ended")
        except Exception as error:  # from the operating system, or because the process ended
            self._failed_starts += 1
            logger.warning("a worker process did not start: %s: %s", type(error).__name__, error)
            if worker is not None:
                self._end(worker)
        else:
            self._failed_starts = 0
            self._workers.append(worker)
        finally:
            self._starting[for_session] -= 1

    async def _spawn(self, for_session: bool) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs, create_memory() as memory:
                current_call = CurrentCall(memory)
                process = await (await self._running_fork_server()).fork(theirs, memory)
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = _Worker(
            process=process, writer=writer, current_call=current_call, for_session=for_session
        )
        self._processes.append(worker)
        worker.watch = asyncio.create_task(self._read(worker, reader))
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch_blocked())
        return worker

    async def _running_fork_server(self) -> ForkServer:
        """Return the process from which workers are forked; start one if none is alive."""
        async with self._fork_server_lock:
            if self._fork_server is None or self._fork_server.is_closed:
                self._fork_server = await ForkServer.start()
            return self._fork_server

    async def _read(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        """Handle a worker's messages until it ends."""
        while True:
            try:
                message = await read_from_worker(reader)
            except WrongTypeError as error:
                self._fail(worker, error)
                continue
            if message is None:
                break
            self._receive(worker, message)
        code = await worker.process.wait()
        running = worker.current_call.read()
        is_own_end = not worker.process.server.is_closed
        self._end(worker)
        for number, play in list(worker.plays.items()):
            if play.result.done():
                continue
            is_culprit = is_own_end if running is None else number == running.episode
            if is_culprit:
                reason = f"the process that played it died ({_how_it_ended(code)})"
                play.result.set_exception(EpisodeFailedError(reason))
            else:
                play.result.set_exception(_MovedError(since=time.monotonic()))
        worker.current_call.close()

    def _fail(self, worker: _Worker, error: WrongTypeError) -> None:
        """End the episode whose code has caused an invalid message, e.g. by its result."""
        play = worker.plays.get(error.number)
        if play is not None and not play.result.done():
            name = play.task.environment.name
            problem = f"the environment {name} returned a value of the wrong type: {error}"
            play.result.set_exception(EpisodeFailedError(problem))

    def _receive(self, worker: _Worker, message: FromWorker) -> None:
        match message:
            case Ready():
                worker.is_ready.set()
            case Ask():
                play = worker.plays.get(message.number)
                if play is not None:
                    self._ask(worker, play, message)
            case Ended():
                play = worker.plays.get(message.number)
                if play is not None and not play.result.done():
                    play.result.set_result(message.episode)
            case Failed():
                play = worker.plays.get(message.number)
                if play is not None and not play.result.done():
                    play.result.set_exception(_error(message))

    def _ask(self, worker: _Worker, play: _Play, ask: Ask) -> None:
        """Request a reply from a seat, or reuse the one from before the episode moved."""
        play.progress.num_turns = ask.num_turns
        play.progress.rewards = list(ask.rewards)
        calls = play.calls[ask.seat]
        index = play.num_asked[ask.seat]
        play.num_asked[ask.seat] += 1
        if index == len(calls):
            seat = play.seats[ask.seat]
            if seat is None:
                raise RuntimeError(f"seat {ask.seat} is a script, which the worker plays itself")
            seen = _AskedMessage(ask)
            made = seat.reply(seen) if ask.given is None else _say(seat, seen, ask.given)
            reply = asyncio.ensure_future(made)
            calls.append(_Call(message=ask.message, reply=reply))
        call = calls[index]
        if call.message != ask.message:
            reason = (
                f"{play.task.environment.name}: the same task and replies gave a different message "
                f"to seat {ask.seat} when the episode was replayed"
            )
            if not play.result.done():
                play.result.set_exception(EpisodeFailedError(reason))
            return

        def answer(reply: asyncio.Task[Reply]) -> None:
            if worker.plays.get(ask.number) is not play or play.result.done():
                return
            if reply.cancelled():
                play.result.set_exception(ServerError("the engine cancelled a reply"))
            elif (error := reply.exception()) is not None:
                play.result.set_exception(error)
            elif not worker.is_closed:
                write(worker.writer, Answer(number=ask.number, seat=ask.seat, reply=reply.result()))

        call.reply.add_done_callback(answer)

    async def _watch_blocked(self) -> None:
        """Move episodes away from blocked workers, and end calls that hang."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for worker in list(self._workers):
                blocking = worker.blocked_by()
                if blocking is None:
                    continue
                self._has_blocked[worker.for_session] = True
                for number, play in list(worker.plays.items()):
                    if number != blocking and not play.result.done():
                        play.result.set_exception(_MovedError(since=worker.running_since))
                if time.monotonic() - worker.running_since > self._call_timeout:
                    self._end_call(worker, worker.plays.get(blocking))

    def _end_call(self, worker: _Worker, play: _Play | None) -> None:
        """Kill a worker whose current call has taken too long, and end the call's episode."""
        if play is None:
            # The call's episode was cancelled, but its code still blocks the worker.
            self._end(worker)
            return
        self._kill_blocked(worker, play)
        if not play.result.done():
            play.result.set_exception(
                LateEpisodeError(
                    f"a call of {play.task.environment.name} has not returned for "
                    f"HANABI_CALL_TIMEOUT={self._call_timeout:g} s"
                )
            )

    def _end(self, worker: _Worker) -> None:
        if worker.is_closed:
            return
        worker.is_closed = True
        worker.is_ready.set()
        self._processes.remove(worker)
        if worker in self._workers:
            self._workers.remove(worker)
        worker.writer.close()
        worker.process.kill()

    def close(self) -> None:
        """End all workers."""
        if self._watcher is not None:
            self._watcher.cancel()
        for start in self._tasks:
            start.cancel()
        for worker in list(self._processes):
            self._end(worker)
        if self._fork_server is not None:
            self._fork_server.close()


async def _say(seat: PlayerSeat, seen: Observation, text: str) -> Reply:
    if not isinstance(seat, SayingSeat):
        raise RuntimeError(f"a {type(seat).__name__} cannot be given its reply")
    return await seat.say(seen, text)


def _error(failed: Failed) -> Exception:
    """Return a worker's error: a HanabiGrpoError by its class, else an EpisodeFailedError."""
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, HanabiGrpoError):
        return kind(failed.message)
    return EpisodeFailedError(f"{failed.kind}: {failed.message}")


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
