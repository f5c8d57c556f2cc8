"""Which game plays next, and how games share one event loop with the rest of the server.

When many replies come in one batch of the engine, many games are ready at the same moment, and
everything else that waits (health checks, uploads, vLLM's callbacks) would wait for all of them. So
games go on one at a time (`Model.take_turn`), with a pass of the event loop in between, and long
lists are worked through in slices.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 0.001
"""Seconds of work on a list between two passes of the event loop."""
_Item = TypeVar("_Item")
_Queues = dict[object, deque[asyncio.Future[None]]]
"""Waiting games by request; the request whose turn is next comes first."""


class Places:
    """Limits how many games are played at once. Used from one event loop.

    The session's own games come first, then the other requests in turn. One queue for all would
    make 32 games wait behind the 8192 of a request that came before.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        # Nobody waits while a place is free.
        self._own: _Queues = {}
        self._guests: _Queues = {}

    @contextlib.asynccontextmanager
    async def place(self, request: object, *, own: bool) -> AsyncIterator[None]:
        """Wait for a place for one game and hold it for the block.

        Args:
            request: Identifies the request that the game belongs to.
            own: Whether the request is the session's trainer's.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_place(request, self._own if own else self._guests)
        try:
            yield
        finally:
            self._release()

    async def _wait_for_place(self, request: object, queues: _Queues) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queues.setdefault(request, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # Cancelled between the grant and its next step.
                self._release()
            raise

    def _release(self) -> None:
        """Hand a place to the next waiting game, or make it free."""
        for queues in (self._own, self._guests):
            if _grant_next(queues):
                return
        self._free += 1


def _grant_next(queues: _Queues) -> bool:
    """Grant a place to a game of the request whose turn it is; False when none waits."""
    while queues:
        request = next(iter(queues))
        queue = queues.pop(request)
        while queue:
            granted = queue.popleft()
            if granted.done():
                # Cancelled while it waited.
                continue
            if queue:
                # The request goes to the end of the line.
                queues[request] = queue
            granted.set_result(None)
            return True
    return False


async def in_slices(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield the items; after every `SLICE` of work with them the event loop goes on first."""
    start = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - start > SLICE:
            await asyncio.sleep(0)
            start = time.perf_counter()
