"""Threads for reading requests, which would block the event loop.

Each kind of work has one thread, and guests never share a thread with the session's trainer. So a
guest can delay other guests, but neither the trainer nor the event loop, and it never takes a
thread of asyncio's own pool, which uploads need.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Thread:
    """A single thread that runs calls in order. Used from one event loop."""

    def __init__(self, name: str) -> None:
        """Start nothing yet.

        Args:
            name: Name of the thread.
        """
        self._pool = ThreadPoolExecutor(1, name)

    async def run(self, function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call a function in the thread; a call cancelled before its turn is skipped."""
        call = partial(function, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Let the thread end after its current call; pending calls are skipped."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Threads:
    """The threads of one server."""

    def __init__(self) -> None:
        """Start none yet."""
        self.sessions = Thread("sessions")
        """Reads session requests of trainers, and builds the games that they claim."""
        self.people = Thread("scripts beside people")
        """Runs the moves of slow scripts in games that people play on the page."""
        self._requests = {own: Thread(_name("requests", own)) for own in (True, False)}

    def requests(self, *, own: bool) -> Thread:
        """Return the thread that reads requests of the session's trainer, or of guests."""
        return self._requests[own]

    def close(self) -> None:
        """Let all threads end."""
        for thread in (self.sessions, self.people, *self._requests.values()):
            thread.close()


def _name(work: str, own: bool) -> str:
    return f"{work} of the {'trainer' if own else 'guests'}"
