"""Threads for reading requests, which would block the event loop.

Each kind of work has one thread, and guests never share a thread with the session's trainer. So a
guest can delay other guests, but neither the trainer nor the event loop, and it never takes a
thread of asyncio's own pool, which uploads need.

Nobody waits for these threads when the process ends, although a call may take minutes, e.g. a move
of a script that searches.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Call(Generic[_T]):
    """A call whose turn in a thread has not come yet."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self.result: Future[_T] = Future()

    def run(self) -> None:
        """Call the function, unless the call has been cancelled."""
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            value = self._function()
        except BaseException as error:
            self.result.set_exception(error)
            # The error refers to this frame; both would be kept until the garbage collector runs.
            del self
        else:
            self.result.set_result(value)


class Thread:
    """A single thread that runs calls in order. Used from one event loop.

    The process can end during a call; with a `ThreadPoolExecutor` it waits until the call returns.
    """

    def __init__(self, name: str) -> None:
        """Start nothing yet.

        Args:
            name: Name of the thread.
        """
        self._name = name
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        """Pending calls; at None the thread ends."""
        self._has_started = False
        self._is_closed = False

    async def run(self, function: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """Call a function in the thread; a call cancelled before its turn is skipped.

        Raises:
            RuntimeError: The thread is closed.
        """
        call = partial(function, *args, **options)
        return await asyncio.wrap_future(self._submit(call))

    def close(self) -> None:
        """Let the thread end after its current call; pending calls are skipped."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.result.cancel()
        self._calls.put(None)

    def _submit(self, function: Callable[[], _T]) -> "Future[_T]":
        """Add a call and return its future result; raises as `run`."""
        if self._is_closed:
            raise RuntimeError(f"the thread {self._name!r} is closed and runs no more calls")
        if not self._has_started:
            self._has_started = True
            threading.Thread(target=self._run_calls, name=self._name, daemon=True).start()
        call = _Call(function)
        self._calls.put(call)
        return call.result

    def _run_calls(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            call.run()
            # Its request and its result would be kept until the next call.
            del call


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
