"""Threads for what would hold up the event loop: reading requests, and slow starts and steps.

Each kind of work has one thread, and guests' work never the same as that of the session's trainer.
A guest can thus keep other guests waiting, but neither the trainer nor the event loop, and never
takes a thread of asyncio's own pool, which uploads need.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from hanabi_grpo.envs.base import Setup, Task
from hanabi_grpo.rollout.loop import Run, run_here

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Thread:
    """One thread, which works through what it is given in order. Used from one event loop."""

    def __init__(self, name: str) -> None:
        """Start nothing yet.

        Args:
            name: Name of the thread.
        """
        self._pool = ThreadPoolExecutor(1, name)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call a function in the thread; a call that is cancelled before its turn is not made."""
        call = partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Let the thread end after its present call; the others are not made."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GameThread:
    """A thread for slow starts and steps of games."""

    thread: Thread
    start: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Held for a start. The others wait outside the thread's queue: a step, whose game holds a
    place, would else wait for the starts of a whole request."""


class Threads:
    """The threads of one server."""

    def __init__(self) -> None:
        """Start none yet."""
        self.sessions = Thread("sessions")
        """Reads what trainers say of themselves, and makes the games that they claim."""
        self._requests = {own: Thread(_name("requests", own)) for own in (True, False)}
        self._games = {}
        for own in (True, False):
            self._games[own] = _GameThread(thread=Thread(_name("games", own)))

    def requests(self, *, own: bool) -> Thread:
        """Return the thread that reads requests of the session's trainer, or of guests."""
        return self._requests[own]

    def runner(self, setup: Setup[Any], *, own: bool) -> Run:
        """Return how starts and steps of a game are made: here, or in a thread where it is slow."""
        if setup.environment.is_slow(setup.config):
            return self._games[own].thread.run
        return run_here

    async def prepare(self, task: Task[Any], *, own: bool) -> None:
        """Make the start of a slow game, before the game takes a place."""
        environment = task.environment
        if not environment.is_slow(task.config):
            return
        games = self._games[own]
        # What fails here fails again in the game, which then counts as failed.
        with contextlib.suppress(Exception):
            async with games.start:
                # Environments keep what it takes for `reset`.
                await games.thread.run(
                    environment.start_id, task.config, split=task.split, seed=task.seed
                )

    def close(self) -> None:
        """Let all threads end."""
        for thread in (self.sessions, *self._requests.values()):
            thread.close()
        for games in self._games.values():
            games.thread.close()


def _name(work: str, own: bool) -> str:
    return f"{work} of the {'trainer' if own else 'guests'}"
