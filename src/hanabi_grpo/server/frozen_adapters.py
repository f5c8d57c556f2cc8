"""Adapters that were lent to the server: they never change, belong to no session, and sit beside
its adapters.

Their name is a digest of weights and configuration, so equal ones are held once. The version only
says for records how many steps are behind them; the same weights lent as two versions are two
entries."""

import asyncio
import logging
from dataclasses import replace

from hanabi_grpo.errors import AdapterError, BusyError, VersionError, shown
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.server.adapter_loader import AdapterLoader, HeldAdapter, Upload, users_of
from hanabi_grpo.server.engine import MAX_FROZEN

logger = logging.getLogger(__name__)


class FrozenAdapters:
    """The lent adapters of one server, at most `MAX_FROZEN`. Used from one event loop."""

    def __init__(self, loader: AdapterLoader) -> None:
        self._loader = loader
        # Not the session's lock: a commit neither waits for a lent adapter nor the other way round.
        self._lock = asyncio.Lock()
        self._held: dict[str, HeldAdapter] = {}
        """By seat word, least recently used first; every one of them is in the engine and has its
        files.
        """

    def words(self) -> list[str]:
        """Return the seat word of each held adapter, least recently used first."""
        return list(self._held)

    def find(self, adapter: str, version: int) -> HeldAdapter:
        """Return a held adapter; a VersionError says that it is not held, or not any more."""
        word = f"{adapter}@{version}"
        if word not in self._held:
            raise VersionError(
                f"{word} is required, but this server does not hold it: it is not among the "
                f"{len(self._held)} frozen "
                f"adapters (at most {MAX_FROZEN}; the least recently used go first, and a new "
                "server process starts "
                "with none); upload it again (PUT /frozen/)."
            )
        return self._held[word]

    def touch(self, held: HeldAdapter) -> None:
        """Note that an adapter is used now."""
        # A user holds it, or it was found just now: it is there.
        self._held[held.name] = self._held.pop(held.name)

    async def lend(self, upload: Upload) -> HeldAdapter:
        """Check an upload, load it and hold it under a name of its own; one that is held already is
        only touched.

        Once checked, it runs to its end even when the caller is cancelled. To make room, the least
        recently used adapter that no rollout uses is dropped before, and stays dropped when
        something fails after that; a BusyError says that all places are in use."""
        rank = upload.config.get("r")
        if type(rank) is not int or not 1 <= rank <= self._loader.max_rank:
            raise AdapterError(
                f"frozen adapter: r={shown(rank)}; this server takes ranks 1 to "
                f"{self._loader.max_rank}. Start it "
                "with a larger LORA_RANK for others."
            )
        upload = replace(upload, adapter=frozen_name(upload.sha256, upload.config))
        await self._loader.check(upload, lora_rank=rank)
        return await self._loader.to_the_end(self._lend(upload))

    async def _lend(self, upload: Upload) -> HeldAdapter:
        word = upload.name
        async with self._lock:
            if word not in self._held:
                if len(self._held) >= MAX_FROZEN:
                    idle = next((held for held in self._held.values() if not held.users), None)
                    if idle is None:
                        raise BusyError(
                            f"{word}: all {MAX_FROZEN} places for frozen adapters are in use "
                            f"({users_of(self._held.values())}). Wait for those games or end "
                            "their clients, then "
                            "upload it again."
                        )
                    # Out of the map before anything waits: no rollout can take it from here on.
                    del self._held[idle.name]
                    logger.info("frozen adapter: dropping %s for %s", idle.name, word)
                    await self._loader.drop(idle, loaded=True)
                held = await self._loader.write(upload)
                try:
                    await self._loader.load(held)
                except BaseException as error:
                    await self._loader.drop(held, loaded=False)
                    if not isinstance(error, Exception):
                        raise
                    raise AdapterError(
                        f"{word} could not be loaded, nothing else changed: {error}"
                    ) from error
                self._held[word] = held
                logger.info("frozen adapter: %s (%d of %d held)", word, len(self._held), MAX_FROZEN)
            held = self._held[word]
            self.touch(held)
            return held
