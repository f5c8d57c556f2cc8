"""Scheduling of games, and sharing of the event loop with the rest of the server.

When many replies arrive in one batch of the engine, many games are ready at the same moment, and
everything else (health checks, uploads, vLLM's callbacks) would wait for all of them. So games
continue one at a time (`Model.take_turn`), with a pass of the event loop in between, and long lists
are processed in slices.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

SLICE = 0.001
"""Seconds of work on a list between two passes of the event loop."""
GUEST_SHARE = 8
"""While a session is alive, guests hold at most one out of this many places."""
_Item = TypeVar("_Item")
_Queues = dict[object, deque[asyncio.Future[None]]]
"""Waiting games by request; the request that is next comes first."""


class Places:
    """Limits the number of games played at once. Used from one event loop.

    The session's own games come first, then those of the other requests, round-robin. With a single
    queue, a request of 32 games would wait behind an earlier one of 8192. While a session is alive,
    guests hold at most one place in `GUEST_SHARE`: every game in a place takes part of every batch
    of the engine, which slows down the trainer's games.
    """

    def __init__(
        self, number: int, *, session_is_alive: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin with all places free.

        Args:
            number: Total number of places.
            session_is_alive: Tells whether a trainer currently owns the server.
        """
        self._free = number
        self._guest_limit = max(1, number // GUEST_SHARE)
        self._session_is_alive = session_is_alive
        self._held_by_guests = 0
        self._own: _Queues = {}
        self._guests: _Queues = {}

    @contextlib.asynccontextmanager
    async def place(self, request: object, *, own: bool) -> AsyncIterator[None]:
        """Wait for a place for one game and hold it during the block.

        Args:
            request: Identifies the request that the game belongs to.
            own: Whether the request is the session's trainer's.
        """
        queues = self._own if own else self._guests
        if self._has_room(own=own) and not queues:
            self._take(own=own)
        else:
            await self._wait_for_place(request, queues, own=own)
        try:
            yield
        finally:
            self._release(own=own)

    def _has_room(self, *, own: bool) -> bool:
        """Tell whether a game of the trainer (`own`) or of a guest may begin now."""
        if not self._free:
            return False
        if own or not self._session_is_alive():
            return True
        return self._held_by_guests < self._guest_limit

    def _take(self, *, own: bool) -> None:
        self._free -= 1
        if not own:
            self._held_by_guests += 1

    async def _wait_for_place(self, request: object, queues: _Queues, *, own: bool) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queues.setdefault(request, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # Cancelled after the place was granted.
                self._release(own=own)
            raise

    def _release(self, *, own: bool) -> None:
        """Free a place, and grant free places to waiting games."""
        self._free += 1
        if not own:
            self._held_by_guests -= 1
        for is_own, queues in ((True, self._own), (False, self._guests)):
            while self._has_room(own=is_own) and _grant_next(queues):
                self._take(own=is_own)


def _grant_next(queues: _Queues) -> bool:
    """Grant a place to a game of the next request; return False if none waits."""
    while queues:
        request = next(iter(queues))
        queue = queues.pop(request)
        while queue:
            granted = queue.popleft()
            if granted.done():
                # Cancelled while waiting.
                continue
            if queue:
                # The request goes to the end of the line.
                queues[request] = queue
            granted.set_result(None)
            return True
    return False


async def in_slices(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield the items, with a pass of the event loop after every `SLICE` seconds of work."""
    start = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - start > SLICE:
            await asyncio.sleep(0)
            start = time.perf_counter()
