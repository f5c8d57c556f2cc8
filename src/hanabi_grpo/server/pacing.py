"""How the games of a step share one event loop with everything else that the server does.

All of it runs on one thread: health checks, uploads, vLLM's callbacks and the moves of every game. When many replies
come in one batch of the engine, many games are ready at the same moment, and whoever else waits would wait for all of
them. So games go on one at a time, with a pass of the event loop in between, and long lists are worked through in
slices.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hanabi_grpo.server.engine import Sample, SamplingConfig
    from hanabi_grpo.server.seats import Sampler

SLICE = 0.001
"""Seconds of work on a list between two passes of the event loop."""
_Item = TypeVar("_Item")


class Turnstile:
    """Lets one waiting game go on in each pass of the event loop, in the order in which they came."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self._lock = asyncio.Lock()

    async def through(self) -> None:
        """Wait for one's turn."""
        async with self._lock:
            await asyncio.sleep(0)


class PacedSampler:
    """Hands the engine's replies to their games through a turnstile."""

    def __init__(self, sampler: "Sampler", turnstile: Turnstile) -> None:
        """Sample from `sampler`."""
        self._sampler, self._turnstile = sampler, turnstile

    @property
    def is_dead(self) -> bool:
        """Whether the engine is."""
        return self._sampler.is_dead

    async def generate(self, prompt_ids: list[int], sampling: "SamplingConfig", lora: Any | None) -> "Sample":
        """Sample one reply."""
        sample = await self._sampler.generate(prompt_ids, sampling, lora)
        await self._turnstile.through()
        return sample


async def in_slices(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield the items; after every `SLICE` of work with them the event loop goes on first."""
    start = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - start > SLICE:
            await asyncio.sleep(0)
            start = time.perf_counter()


@contextlib.contextmanager
def heap_left_alone() -> Iterator[None]:
    """Keep the garbage collector away from everything that is there now, until the block ends.

    With vLLM imported that is 670,000 objects. None of them goes before the server ends, and each full collection
    would hold up the event loop for half a second to find that out.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
