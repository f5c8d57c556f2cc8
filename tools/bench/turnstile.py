"""Hold a trainer whenever it requests games, and release it for a step that is measured.

A step lasts from one such request to the next: games, learning and whatever else the trainer does.
A held trainer waits for an answer and computes nothing, so another trainer has the machine to
itself.
"""

import asyncio
import threading
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_LOOK_SECONDS = 0.5
"""Seconds between two checks whether anybody can still arrive."""


class Turnstile:
    """Holds whoever arrives until it is released; for one at a time, from any thread."""

    def __init__(self) -> None:
        """Start closed."""
        self._arrived = threading.Semaphore(0)
        self._free = threading.Semaphore(0)
        self._closed = False

    def arrive(self) -> bool:
        """Wait to be released; False if the turnstile is closed for good."""
        self._arrived.release()
        self._free.acquire()
        return not self._closed

    def await_arrival(self, check: Callable[[], None]) -> None:
        """Wait for somebody to arrive.

        Args:
            check: Is called periodically, and raises if nobody will arrive.
        """
        while not self._arrived.acquire(timeout=_LOOK_SECONDS):
            check()

    def step(self, check: Callable[[], None]) -> None:
        """Release the one that has arrived, and wait until it is back."""
        self._free.release()
        self.await_arrival(check)

    def close(self) -> None:
        """Turn away the one that has arrived."""
        self._closed = True
        self._free.release()


class HeldApp:
    """An app whose requests for games wait at a turnstile; heartbeats and adapters pass."""

    def __init__(self, app: ASGIApp, turnstile: Turnstile, path: str = "/rollout/") -> None:
        """Hold requests for `path`."""
        self._app = app
        self._turnstile = turnstile
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_held = scope["type"] == "http" and scope["path"] == self._path
        if is_held:
            may_pass = await asyncio.to_thread(self._turnstile.arrive)
            if not may_pass:
                await Response(status_code=503)(scope, receive, send)
                return
        await self._app(scope, receive, send)
