"""HANABI_SLEEP: on a GPU that server and trainer share, the engine sleeps while the trainer learns.

A sleeping engine has moved its weights to the host's memory and released its cache (vLLM's sleep
level 1). The trainer has priority: the engine is asleep before the answer with a step's games
leaves the server, so the trainer may use the memory at once, and the trainer's next request wakes
it. Calls of all other clients wait in the meantime, until the trainer's next request or the end of
its session.
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
"""Time between two checks whether the session is over, while another client's call waits."""


class DozingSampler(Sampler, Protocol):
    """An engine that can release its device memory for a while."""

    async def sleep(self) -> None:
        """Move the weights to the host and drop the cache; no call may be in flight."""

    async def wake(self) -> None:
        """Allocate the memory again; no calls are made before that."""


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
        """Engine calls in flight."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._num_owners = 0
        """Requests of the session's trainer that are being answered."""
        self._changing = asyncio.Lock()
        """Held while the engine falls asleep or wakes."""
        self._changes: set[asyncio.Task[None]] = set()
        """Keeps tasks from being garbage-collected before they are done."""
        self._failure = ""
        """Why the engine cannot wake up; "" if it can."""
        self.is_asleep = False

    @property
    def is_dead(self) -> bool:
        """See `Sampler.is_dead`; an engine that cannot wake up is dead too."""
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
        """Keep the engine awake for a request of the session's trainer; afterward it sleeps.

        Raises:
            ServerError: The engine could not wake up or fall asleep.
        """
        self._num_owners += 1
        try:
            await self.wake()
            yield
        finally:
            self._num_owners -= 1
        # Not after a failure: there is nothing to learn from, and the next request comes at once.
        await self._to_the_end(self._fall_asleep())

    async def wake(self) -> None:
        """Wake the engine; does nothing if it is awake.

        Raises:
            ServerError: The engine cannot allocate its memory.
        """
        await self._to_the_end(self._wake_up())

    async def _to_the_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Complete falling asleep or waking, even if the client has closed its connection."""
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
                    "server restarts or exits. Lower HANABI_GPU_MEMORY_UTILIZATION or "
                    "HANABI_TRAINER_MEMORY, or set HANABI_SLEEP=0."
                )
                logger.error(self._failure)
                # Waiting calls continue, and find a dead engine.
                self._is_open.set()
                raise ServerError(self._failure) from error
            self.is_asleep = False
            self._is_open.set()
            logger.info("engine: awake after %.1f s", time.monotonic() - start)

    async def _fall_asleep(self) -> None:
        """Block new calls, wait for those in flight, and put the engine to sleep."""
        async with self._changing:
            if self.is_asleep or self._num_owners or self.is_dead:
                return
            self._is_open.clear()
            try:
                await self._is_idle.wait()
                # The trainer may have sent another request in the meantime.
                if self._num_owners:
                    return
                start = time.monotonic()
                await self._engine.sleep()
                self.is_asleep = True
                logger.info("engine: asleep after %.1f s", time.monotonic() - start)
            except Exception as error:
                raise ServerError(
                    f"the engine could not be put to sleep ({error}); set HANABI_SLEEP=0 in both "
                    "terminals, then run the same command again, in training with RESUME=latest."
                ) from error
            finally:
                if not self.is_asleep:
                    self._is_open.set()

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Wait until the engine is awake, and keep it awake for one call."""
        while not self._is_open.is_set():
            # A trainer that is gone will not wake the engine.
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
        # Unloading writes to memory that a sleeping engine does not have.
        async with self._call():
            await self._engine.unload_adapter(number)

    def stop(self) -> None:
        """See `Sampler.stop`."""
        self._engine.stop()


@contextlib.asynccontextmanager
async def engine_for_trainer(engine: Sampler, *, own: bool) -> AsyncIterator[None]:
    """Keep an engine awake for a request, see `SleepingSampler.asked_by_trainer`.

    Args:
        engine: The server's engine; for one that never sleeps, this does nothing.
        own: Whether the request is the session's trainer's.
    """
    if own and isinstance(engine, SleepingSampler):
        async with engine.asked_by_trainer():
            yield
    else:
        yield


async def wake_for_trainer(engine: EngineHealth) -> None:
    """Wake an engine that may be asleep, before a request of the session's trainer.

    Raises:
        ServerError: The engine cannot allocate its memory.
    """
    if isinstance(engine, SleepingSampler):
        await engine.wake()
