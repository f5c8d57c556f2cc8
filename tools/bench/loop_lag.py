"""How late an event loop is: how long other requests wait while one callback runs."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

_TICK = 0.002
"""Duration of a sleep in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The measurements of one short sleep."""

    late: float
    """Seconds by which it returned late; other processes on the same cores add to it."""
    busy: float
    """CPU seconds of this thread in that time, which its own callbacks took."""


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[list[Lag]]:
    """Yield a list that is filled with measurements of short sleeps until the block ends."""
    lags: list[Lag] = []

    async def watch() -> None:
        while True:
            wall_start = time.perf_counter()
            cpu_start = time.thread_time()
            await asyncio.sleep(_TICK)
            late = max(0.0, time.perf_counter() - wall_start - _TICK)
            busy = time.thread_time() - cpu_start
            lags.append(Lag(late=late, busy=busy))

    task = asyncio.create_task(watch())
    try:
        yield lags
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed; 0 if empty."""
    if not values:
        return 0.0
    rank = math.ceil(share * len(values))
    index = min(max(rank - 1, 0), len(values) - 1)
    return sorted(values)[index]
