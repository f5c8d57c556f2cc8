"""A trainer that is held wherever it asks for games, and let through for a step that is measured.

A step is what lies between two such requests: games, learning and whatever the trainer does
besides. A held trainer waits for an answer and computes nothing, so another has the machine for
itself.
"""

import asyncio
import threading
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_LOOK_SECONDS = 0.5
"""Between two checks whether anybody can still arrive."""


class Turnstile:
    """Holds whoever arrives until it is let through; for one at a time, from any thread."""

    def __init__(self) -> None:
        """Let nobody through."""
        self._arrived = threading.Semaphore(0)
        self._free = threading.Semaphore(0)
        self._closed = False

    def arrive(self) -> bool:
        """Wait to be let through; False: never any more."""
        self._arrived.release()
        self._free.acquire()
        return not self._closed

    def await_arrival(self, check: Callable[[], None]) -> None:
        """Wait for somebody to arrive.

        Args:
            check: Is called now and then, and raises when nobody will arrive.
        """
        while not self._arrived.acquire(timeout=_LOOK_SECONDS):
            check()

    def step(self, check: Callable[[], None]) -> None:
        """Let through who has arrived, and wait until it is back."""
        self._free.release()
        self.await_arrival(check)

    def close(self) -> None:
        """Send away who has arrived."""
        self._closed = True
        self._free.release()


class HeldApp:
    """An app whose requests for games wait at a turnstile; heartbeats and adapters go through."""

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
