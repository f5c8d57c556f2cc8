"""How late an event loop is: what every other request waits for while one callback runs."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

_TICK = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What one short sleep met."""

    late: float
    """Seconds by which it came back late; other processes on the same cores add to it."""
    busy: float
    """CPU seconds that this thread spent meanwhile: what its own callbacks took, whatever else
    ran.
    """


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[list[Lag]]:
    """Yield a list that fills with what short sleeps met, one after the other, until the block
    ends.
    """
    lags: list[Lag] = []

    async def watch() -> None:
        while True:
            start, busy = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_TICK)
            late = max(0.0, time.perf_counter() - start - _TICK)
            lags.append(Lag(late=late, busy=time.thread_time() - busy))

    task = asyncio.create_task(watch())
    try:
        yield lags
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
