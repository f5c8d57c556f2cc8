"""Guest adapters: uploaded by any client, they never change and belong to no session.

Their name is a digest of weights and configuration, so equal ones are held once. The version only
records how many optimizer steps are behind them; the same weights uploaded as two versions are two
entries.
"""

import asyncio
import logging
from dataclasses import replace

from hanabi_grpo.errors import AdapterError, BusyError, VersionError, shown
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.server.adapter_loader import (
    MAX_FROZEN,
    AdapterLoader,
    HeldAdapter,
    Upload,
    users_of,
)

logger = logging.getLogger(__name__)


class FrozenAdapters:
    """The guest adapters of one server, at most `MAX_FROZEN`. Used from one event loop."""

    def __init__(self, loader: AdapterLoader) -> None:
        self._loader = loader
        # Not the session's lock: a commit does not wait for a guest adapter, nor the other way
        # round.
        self._lock = asyncio.Lock()
        self._held: dict[str, HeldAdapter] = {}
        """By name with version, least recently used first; each is in the engine and has its
        files."""

    def names(self) -> list[str]:
        """Return the name with version of each held adapter, least recently used first."""
        return list(self._held)

    def find(self, adapter: str, version: int) -> HeldAdapter:
        """Return a held adapter.

        Raises:
            VersionError: It is not held, or not any more.
        """
        name = f"{adapter}@{version}"
        if name not in self._held:
            raise VersionError(
                f"{name} is required, but this server does not hold it: it is not among the "
                f"{len(self._held)} frozen adapters (at most {MAX_FROZEN}; the least recently "
                "used go first, and a new server process starts with none); upload it again "
                "(PUT /frozen/)."
            )
        return self._held[name]

    def touch(self, adapter: HeldAdapter) -> None:
        """Note that an adapter is used now."""
        # It is there: it has a user, or was looked up just now.
        self._held[adapter.name] = self._held.pop(adapter.name)

    async def add(self, upload: Upload) -> HeldAdapter:
        """Check an upload, load it and hold it under the name of its content.

        One that is held already is only touched. Once checked, it runs to its end even when the
        caller is cancelled. To make room, the least recently used adapter that no rollout uses is
        dropped first, and stays dropped when something fails after that.

        Raises:
            AdapterError: The upload must not be loaded, or the engine refused it.
            BusyError: Every held adapter is in use, so there is no room.
        """
        rank = upload.config.get("r")
        if type(rank) is not int or not 1 <= rank <= self._loader.max_rank:
            raise AdapterError(
                f"frozen adapter: r={shown(rank)}; this server takes ranks 1 to "
                f"{self._loader.max_rank}. Start it with a larger LORA_RANK for others."
            )
        named = replace(upload, adapter=frozen_name(upload.sha256, upload.config))
        await self._loader.check(named, lora_rank=rank)
        return await self._loader.to_the_end(self._add(named))

    async def _add(self, upload: Upload) -> HeldAdapter:
        async with self._lock:
            if upload.name not in self._held:
                if len(self._held) >= MAX_FROZEN:
                    await self._make_room(upload.name)
                self._held[upload.name] = await self._load(upload)
                logger.info(
                    "frozen adapter: %s (%d of %d held)", upload.name, len(self._held), MAX_FROZEN
                )
            adapter = self._held[upload.name]
            self.touch(adapter)
            return adapter

    async def _make_room(self, name: str) -> None:
        """Drop the least recently used adapter that no rollout uses."""
        idle = next((adapter for adapter in self._held.values() if not adapter.users), None)
        if idle is None:
            raise BusyError(
                f"{name}: all {MAX_FROZEN} places for frozen adapters are in use "
                f"({users_of(self._held.values())}). Wait for those games or end their clients, "
                "then upload it again."
            )
        # Out of the map before anything is awaited: no rollout can take it from here on.
        del self._held[idle.name]
        logger.info("frozen adapter: dropping %s for %s", idle.name, name)
        await self._loader.drop(idle, loaded=True)

    async def _load(self, upload: Upload) -> HeldAdapter:
        adapter = await self._loader.write(upload)
        try:
            await self._loader.load(adapter)
        except BaseException as error:
            await self._loader.drop(adapter, loaded=False)
            if not isinstance(error, Exception):
                raise
            raise AdapterError(
                f"{upload.name} could not be loaded, nothing else changed: {error}"
            ) from error
        return adapter
