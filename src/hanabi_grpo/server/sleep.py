"""HANABI_SLEEP: on a GPU that server and trainer share, the engine sleeps while the trainer learns.

Asleep, it has moved its weights to the host's memory and given the cache back (vLLM's sleep level
1). The rule is the trainer's: before the answer with a step's games leaves the server the engine is
asleep, so the trainer may take the memory at once; and whatever the trainer asks for next wakes it.
Calls of all others wait meanwhile. They are let in by the trainer's next request, or by themselves
once its session is over.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.sampler import (
    AdapterHandle,
    EngineHealth,
    Sample,
    Sampler,
    SamplingConfig,
)

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""Time between two looks at whether the session is over, while a stranger's call waits."""


class DozingSampler(Sampler, Protocol):
    """An engine that can give its device's memory back for a while."""

    async def sleep(self) -> None:
        """Move the weights to the host and drop the cache; no call is in flight."""

    async def wake(self) -> None:
        """Take the memory again; only then are there calls."""


class SleepingSampler(Sampler):
    """A `Sampler` around an engine that sleeps while the session's trainer learns."""

    def __init__(self, engine: DozingSampler, session_is_alive: Callable[[], bool]) -> None:
        """Begin awake.

        Args:
            engine: The engine.
            session_is_alive: Tells whether the server works for a trainer.
        """
        self._engine = engine
        self._session_is_alive = session_is_alive
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._num_calls = 0
        """Calls of the engine in flight."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._num_owners = 0
        """Requests of the session's trainer that are being answered."""
        self._changing = asyncio.Lock()
        """Held while the engine falls asleep or wakes."""
        self._changes: set[asyncio.Task[None]] = set()
        """Keeps them from being collected before they are done."""
        self._failure = ""
        """Why it sleeps for ever; "" while all is well."""
        self.is_asleep = False

    @property
    def is_dead(self) -> bool:
        """See `Sampler.is_dead`; an engine that cannot wake is dead, too."""
        return bool(self._failure) or self._engine.is_dead

    @property
    def state(self) -> str:
        """See `Sampler.state`."""
        return self._failure or self._engine.state

    @property
    def silence(self) -> float:
        """See `Sampler.silence`."""
        return self._engine.silence

    @contextlib.asynccontextmanager
    async def asked_by_trainer(self) -> AsyncIterator[None]:
        """Keep the engine awake for a request of the session's trainer; afterwards it sleeps.

        Raises:
            ServerError: It could not wake, or not fall asleep.
        """
        self._num_owners += 1
        try:
            await self.wake()
            yield
        finally:
            self._num_owners -= 1
        # Not after a failure: nobody learns from that, and the next request comes at once.
        await self._to_the_end(self._fall_asleep())

    async def wake(self) -> None:
        """Wake the engine; nothing happens where it is awake.

        Raises:
            ServerError: It cannot take its memory.
        """
        await self._to_the_end(self._wake_up())

    async def _to_the_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Fall asleep or wake to the end, also for a client that has closed its connection."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _wake_up(self) -> None:
        async with self._changing:
            if not self.is_asleep:
                return
            start = time.monotonic()
            try:
                await self._engine.wake()
            except Exception as error:
                self._failure = (
                    f"the engine cannot wake up: it could not get its memory back ({error}); the "
                    "server starts again or ends. Lower HANABI_GPU_MEMORY_UTILIZATION or "
                    "HANABI_TRAINER_MEMORY, or set HANABI_SLEEP=0."
                )
                logger.error(self._failure)
                # Whoever waits finds a dead engine.
                self._is_open.set()
                raise ServerError(self._failure) from error
            self.is_asleep = False
            self._is_open.set()
            logger.info("engine: awake after %.1f s", time.monotonic() - start)

    async def _fall_asleep(self) -> None:
        """Let no new call in, wait for those in flight, and put the engine to sleep."""
        async with self._changing:
            if self.is_asleep or self._num_owners or self.is_dead:
                return
            self._is_open.clear()
            try:
                await self._is_idle.wait()
                # The trainer may have asked again meanwhile.
                if self._num_owners:
                    return
                start = time.monotonic()
                await self._engine.sleep()
                self.is_asleep = True
                logger.info("engine: asleep after %.1f s", time.monotonic() - start)
            except Exception as error:
                raise ServerError(
                    f"the engine could not be put to sleep ({error}); set HANABI_SLEEP=0 in both "
                    "terminals, then give the same command, in training with RESUME=latest."
                ) from error
            finally:
                if not self.is_asleep:
                    self._is_open.set()

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Wait until the engine is awake, and keep it so for one call."""
        while not self._is_open.is_set():
            # A trainer that is gone wakes nobody.
            if self.is_asleep and not self._session_is_alive():
                await self.wake()
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_open.wait(), _LOOK_SECONDS)
        if self._failure:
            raise ServerError(self._failure)
        self._num_calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self._is_idle.set()

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        """See `Sampler.generate`."""
        async with self._call():
            return await self._engine.generate(prompt_ids, sampling, adapter, game)

    @property
    def num_copies(self) -> int:
        """See `Sampler.num_copies`."""
        return self._engine.num_copies

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        """See `Sampler.score`."""
        async with self._call():
            return await self._engine.score(prompt_ids, reply_ids, adapter, copy)

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        """See `Sampler.load_adapter`."""
        async with self._call():
            return await self._engine.load_adapter(name, number, path)

    async def unload_adapter(self, number: int) -> None:
        """See `Sampler.unload_adapter`."""
        # It writes to memory that a sleeping engine does not have.
        async with self._call():
            await self._engine.unload_adapter(number)

    def stop(self) -> None:
        """See `Sampler.stop`."""
        self._engine.stop()


@contextlib.asynccontextmanager
async def engine_for_trainer(engine: Sampler, *, own: bool) -> AsyncIterator[None]:
    """Keep an engine awake for a request, see `SleepingSampler.asked_by_trainer`.

    Args:
        engine: The server's; one that never sleeps is always awake.
        own: Whether the request is the session's trainer's.
    """
    if own and isinstance(engine, SleepingSampler):
        async with engine.asked_by_trainer():
            yield
    else:
        yield


async def wake_for_trainer(engine: EngineHealth) -> None:
    """Wake an engine that may be asleep, before what the session's trainer asks of it.

    Raises:
        ServerError: It cannot take its memory.
    """
    if isinstance(engine, SleepingSampler):
        await engine.wake()
