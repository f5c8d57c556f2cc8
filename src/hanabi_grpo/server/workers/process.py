"""The worker process: plays episodes concurrently, and reports whose code is running.

Forked by `fork_server` with a connected socket. It ends with the connection, and is killed with the
fork server.
"""

import asyncio
import socket
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from io import FileIO
from typing import Any

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.taught import with_teachers
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.rollout.loop import Player, Progress, play_episode
from hanabi_grpo.server.workers.current_call import CurrentCall
from hanabi_grpo.server.workers.messages import (
    Answer,
    Ask,
    Cancel,
    Ended,
    Failed,
    Ready,
    Start,
    read_to_worker,
    write,
)
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import Reply

_NO_TEXT = "its text cannot be read"
"""Message of an exception whose `str` raises."""

_episode: ContextVar[int | None] = ContextVar("_episode", default=None)
"""Number of the episode whose coroutines run in this context."""


class ExitError(Exception):
    """An episode's code tried to end the process, with sys.exit() or a KeyboardInterrupt."""


class _Announced(Coroutine[Any, Any, Any]):
    """A coroutine of an episode that tells the server when its code runs.

    asyncio runs a coroutine with `send` until it waits for something; in between, the environment's
    code runs, which may never return. Exceptions that would end asyncio's loop, and with it every
    episode of this process, become an error of this episode.
    """

    def __init__(
        self, inner: Coroutine[Any, Any, Any], current_call: CurrentCall, number: int
    ) -> None:
        self._inner = inner
        self._current_call = current_call
        self._number = number

    def send(self, value: Any) -> Any:
        self._current_call.begin(self._number)
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _exit_error(error) from error
        finally:
            self._current_call.end()

    def throw(self, *error: Any) -> Any:
        self._current_call.begin(self._number)
        try:
            return self._inner.throw(*error)
        except (SystemExit, KeyboardInterrupt) as raised:
            raise _exit_error(raised) from raised
        finally:
            self._current_call.end()

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedPlayer:
    """A seat whose replies come from the server."""

    worker: "Worker"
    number: int
    name: str
    progress: Progress

    def seat(self, player: int, *, task: Task[Any], game: int) -> "_AskedSeat":
        return _AskedSeat(player=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedSeat:
    """A seat of one episode whose replies come from the server."""

    player: _AskedPlayer

    async def reply(self, seen: Observation) -> Reply:
        """Send the player's message and wait for the reply."""
        return await self._ask(seen, None)

    async def say(self, seen: Observation, text: str) -> Reply:
        """Send the player's message with a given reply, and wait for the resulting reply."""
        return await self._ask(seen, text)

    async def _ask(self, seen: Observation, given: str | None) -> Reply:
        asked = self.player
        ask = Ask(
            number=asked.number,
            seat=seen.player,
            message=seen.message(),
            given=given,
            window=seen.window,
            follows_call=seen.follows_call,
            num_turns=asked.progress.num_turns,
            rewards=tuple(asked.progress.rewards),
        )
        return await asked.worker.ask(ask)


class Worker:
    """The episodes of this process."""

    def __init__(self, writer: asyncio.StreamWriter, current_call: CurrentCall) -> None:
        self._writer = writer
        self._current_call = current_call
        self._episodes: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[tuple[int, int], asyncio.Future[Reply]] = {}
        """Pending replies, by episode and seat."""

    def send(self, message: Ready | Ask | Ended | Failed) -> None:
        """Send a message to the server."""
        write(self._writer, message)

    async def ask(self, ask: Ask) -> Reply:
        """Ask the server for a reply and return it."""
        key = (ask.number, ask.seat)
        answered = asyncio.get_running_loop().create_future()
        self._waiting[key] = answered
        try:
            self.send(ask)
            return await answered
        finally:
            del self._waiting[key]

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Handle the server's messages until it closes the connection."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        self.send(Ready())
        while (message := await read_to_worker(reader)) is not None:
            match message:
                case Start():
                    token = _episode.set(message.number)
                    self._episodes[message.number] = loop.create_task(self._play(message))
                    _episode.reset(token)
                case Answer():
                    answered = self._waiting.get((message.number, message.seat))
                    if answered is not None and not answered.done():
                        answered.set_result(message.reply)
                case Cancel():
                    episode = self._episodes.get(message.number)
                    if episode is not None:
                        episode.cancel()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> "asyncio.Task[Any]":
        """Create a task; tasks created by an episode's code are announced as that episode's."""
        number = _episode.get()
        if number is not None:
            coroutine = _Announced(coroutine, self._current_call, number)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def _play(self, start: Start) -> None:
        try:
            self.send(Ended(number=start.number, episode=await self._episode(start)))
        except asyncio.CancelledError as error:
            running = asyncio.current_task()
            if running is None or not running.cancelling():
                # The server did not cancel the episode, and waits for its result.
                self._fail(start.number, error)
        except (SystemExit, KeyboardInterrupt) as error:
            self._fail(start.number, _exit_error(error))
        except Exception as error:  # any error of an environment from another package
            self._fail(start.number, error)
        finally:
            del self._episodes[start.number]

    def _fail(self, number: int, error: BaseException) -> None:
        """Tell the server that an episode ended with an exception."""
        self.send(Failed(number=number, kind=type(error).__name__, message=_text_of(error)))

    async def _episode(self, start: Start) -> Any:
        played = setup(start.env, start.env_config)
        progress = Progress()
        players: list[Player] = []
        for name, script in zip(start.names, start.scripts, strict=True):
            if script is not None:
                players.append(make_script(played, script))
            else:
                asked = _AskedPlayer(worker=self, number=start.number, name=name, progress=progress)
                players.append(asked)
        return await play_episode(
            played.task(start.split, start.seed),
            with_teachers(players, start.teachers, played),
            game=start.game,
            names=start.names,
            instance_id=start.instance_id,
            progress=progress,
        )


def _exit_error(error: BaseException) -> ExitError:
    return ExitError(f"its code raised {error!r}")


def _text_of(error: BaseException) -> str:
    """Return the text of another package's exception in a form that can be sent."""
    try:
        return encodable(str(error))
    except Exception:
        return _NO_TEXT


async def _run(connection: socket.socket, current_call: CurrentCall) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    await Worker(writer, current_call).serve(reader)


def run(connection: socket.socket, memory: FileIO) -> None:
    """Play the episodes that the server sends, until it closes the connection.

    Args:
        connection: The connection to the server.
        memory: The memory in which the server reads whose code is running; it is closed.
    """
    with memory:
        current_call = CurrentCall(memory)
    asyncio.run(_run(connection, current_call))
