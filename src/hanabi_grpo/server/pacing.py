"""Which game plays next, and how games share one event loop with everything else that the server
does.

When many replies come in one batch of the engine, many games are ready at the same moment, and
whoever else waits (health checks, uploads, vLLM's callbacks) would wait for all of them. So games
go on one at a time (`Model.take_turn`), with a pass of the event loop in between, and long lists are worked through in
slices."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 0.001
"""Seconds of work on a list between two passes of the event loop."""
_Item = TypeVar("_Item")


class Places:
    """So many games in play at once: the session's own first, then the requests in turn. Used from
    one event loop.

    One queue for all would make 32 games wait behind the 8192 of a request that came before.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._own: dict[object, deque[asyncio.Future[None]]] = {}
        self._guests: dict[object, deque[asyncio.Future[None]]] = {}
        """Who waits, by request; the request whose turn is next comes first. Nobody waits while a
        place is free.
        """

    @contextlib.asynccontextmanager
    async def place(self, request: object, *, own: bool) -> AsyncIterator[None]:
        """Wait for a place for a game of a request, the trainer's `own` or another's; hold it for
        the block.
        """
        if self._free:
            self._free -= 1
        else:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._own if own else self._guests).setdefault(request, deque()).append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    # It was cancelled between the grant and its next step.
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        for waiting in (self._own, self._guests):
            while waiting:
                request = next(iter(waiting))
                queue = waiting.pop(request)
                while queue:
                    granted = queue.popleft()
                    if granted.done():
                        continue  # Cancelled while it waited.
                    if queue:
                        waiting[request] = queue
                    granted.set_result(None)
                    return
        self._free += 1


async def in_slices(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield the items; after every `SLICE` of work with them the event loop goes on first."""
    start = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - start > SLICE:
            await asyncio.sleep(0)
            start = time.perf_counter()
