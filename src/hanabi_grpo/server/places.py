"""Which game plays next when more are wanted than may be in play: the session's own first, then request by request.

One queue would make 32 games wait behind the 8192 of a request that came before. So each request has a queue of its
own, and a place that becomes free goes to the requests in turn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Places:
    """So many games in play at once. Used from one event loop."""

    def __init__(self, number: int) -> None:
        """Start with all places free."""
        self._free = number
        self._own: dict[object, deque[asyncio.Future[None]]] = {}
        self._guests: dict[object, deque[asyncio.Future[None]]] = {}
        """Who waits, by request; the request whose turn is next comes first. Nobody waits while a place is free."""

    @contextlib.asynccontextmanager
    async def place(self, request: object, *, own: bool) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the block.

        Args:
            request: What the game belongs to.
            own: Whether the request is from the session's trainer.
        """
        await self._take(request, self._own if own else self._guests)
        try:
            yield
        finally:
            self._give()

    async def _take(self, request: object, waiting: dict[object, deque[asyncio.Future[None]]]) -> None:
        if self._free:
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.setdefault(request, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # It was cancelled between the grant and its next step.
                self._give()
            raise

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
