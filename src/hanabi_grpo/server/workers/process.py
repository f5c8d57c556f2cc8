"""The worker process: plays episodes side by side, and says whose code is running.

Forked by `fork_server` with a connected socket. It ends with the connection, and is killed with the
fork server.
"""

import asyncio
import socket
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.agents.script import make_script
from hanabi_grpo.agents.taught import with_teachers
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.rollout.loop import Player, Progress, play_episode
from hanabi_grpo.server.workers.messages import (
    Answer,
    Ask,
    Cancel,
    Ended,
    Failed,
    Resting,
    Running,
    Start,
    read_to_worker,
    write,
)
from hanabi_grpo.types import Reply

_episode: ContextVar[int | None] = ContextVar("_episode", default=None)
"""Number of the episode whose coroutines run in this context."""


class _Announced(Coroutine[Any, Any, Any]):
    """A coroutine of an episode that tells the server when its code runs and when it rests.

    asyncio runs a coroutine by `send` until it waits for something; in between the code of the
    environment runs, which may never come back.
    """

    def __init__(self, inner: Coroutine[Any, Any, Any], worker: "Worker", number: int) -> None:
        self._inner = inner
        self._worker = worker
        self._number = number

    def send(self, value: Any) -> Any:
        self._worker.send(Running(number=self._number))
        try:
            return self._inner.send(value)
        except SystemExit as error:
            # Of a task within an episode; asyncio would end the process, with all other episodes.
            raise RuntimeError(f"SystemExit: {error}") from error
        finally:
            self._worker.send(Resting())

    def throw(self, *error: Any) -> Any:
        self._worker.send(Running(number=self._number))
        try:
            return self._inner.throw(*error)
        finally:
            self._worker.send(Resting())

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
        """Send the player's message and what it says, and wait for that as a reply."""
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

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._episodes: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[tuple[int, int], asyncio.Future[Reply]] = {}
        """By episode and seat, who waits for a reply."""

    def send(self, message: Running | Resting | Ask | Ended | Failed) -> None:
        """Send a message to the server."""
        write(self._writer, message)

    async def ask(self, ask: Ask) -> Reply:
        """Ask the server for a reply and return it."""
        key = (ask.number, ask.seat)
        answered = asyncio.get_running_loop().create_future()
        self._waiting[key] = answered
        self.send(ask)
        try:
            return await answered
        finally:
            del self._waiting[key]

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Do what the server asks for until it closes the connection."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        self.send(Resting())
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
        """Make a task; one that is made by code of an episode is announced as that episode's."""
        number = _episode.get()
        if number is not None:
            coroutine = _Announced(coroutine, self, number)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def _play(self, start: Start) -> None:
        try:
            self.send(Ended(number=start.number, episode=await self._episode(start)))
        except asyncio.CancelledError:
            pass
        # Whatever an environment of another package raises; argparse exits, for one.
        except (Exception, SystemExit) as error:
            kind = type(error).__name__
            self.send(Failed(number=start.number, kind=kind, message=str(error)))
        finally:
            del self._episodes[start.number]

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


async def _run(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    await Worker(writer).serve(reader)


def run(connection: socket.socket) -> None:
    """Play what the server at the other end of a socket sends, until it closes the connection."""
    asyncio.run(_run(connection))
