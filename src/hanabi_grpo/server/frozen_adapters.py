"""Guest adapters: uploaded by any client, they never change and do not belong to a session.

Their name is a digest of weights and configuration, so equal ones are held once. The version only
records the number of optimizer steps behind them; the same weights uploaded as two versions are two
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

RESERVED = 4
"""Slots out of `MAX_FROZEN` that only the session's trainer may fill while it is alive.

So guests that keep all other slots in use never hold up a trainer with frozen partners."""


class FrozenAdapters:
    """The guest adapters of one server, at most `MAX_FROZEN`. Used from one event loop."""

    def __init__(self, loader: AdapterLoader) -> None:
        self._loader = loader
        # Separate from the session's lock, so that commits and guest adapters do not wait for each
        # other.
        self._lock = asyncio.Lock()
        self._held: dict[str, HeldAdapter] = {}
        """By name with version, least recently used first; each is loaded in the engine and has its
        files."""
        self._of_session: set[str] = set()
        """Names of the adapters that the session's trainer uploaded."""

    def names(self) -> list[str]:
        """Return the name with version of each held adapter, least recently used first."""
        return list(self._held)

    def find(self, adapter: str, version: int) -> HeldAdapter:
        """Return a held adapter.

        Raises:
            VersionError: It is not held, or no longer.
        """
        name = f"{adapter}@{version}"
        if name not in self._held:
            raise VersionError(
                f"{name} is required, but this server does not hold it: it is not among the "
                f"{len(self._held)} frozen adapters (at most {MAX_FROZEN}; the least recently "
                "used are evicted first, and a new server process starts with none); upload it "
                "again (PUT /frozen/)."
            )
        return self._held[name]

    def touch(self, adapter: HeldAdapter) -> None:
        """Mark an adapter as just used."""
        # It is certainly held: it has a user, or was just looked up.
        self._held[adapter.name] = self._held.pop(adapter.name)

    def begin_session(self) -> None:
        """Count the uploads of earlier trainers as guests' from now on."""
        self._of_session.clear()

    async def add(
        self, upload: Upload, *, is_session: bool = True, fingerprint: str | None = None
    ) -> HeldAdapter:
        """Check an upload, load it and hold it under the name of its content.

        An adapter that is already held is only touched, also as another version: a player that does
        not learn has the same weights in all checkpoints of its run. After the check, loading runs
        to its end even when the caller is cancelled. To make room, the least recently used adapter
        that no rollout uses is dropped first, and stays dropped if loading fails. A guest's upload
        never drops an adapter of the session's trainer.

        Args:
            upload: The adapter.
            is_session: Whether it may use the `RESERVED` slots: it is the session's trainer's, or
                there is no session.
            fingerprint: Fingerprint of its base model; None: if the server has several, the base
                model is found by the tensors' shapes.

        Raises:
            AdapterError: The upload must not be loaded, or the engine rejected it.
            BusyError: Every held adapter is in use, so there is no room.
        """
        rank = upload.config.get("r")
        if type(rank) is not int or not 1 <= rank <= self._loader.max_rank:
            raise AdapterError(
                f"frozen adapter: r={shown(rank)}; this server accepts ranks 1 to "
                f"{self._loader.max_rank}. Start it with a larger LORA_RANK for larger ranks."
            )
        named = replace(upload, adapter=frozen_name(upload.sha256, upload.config))
        base = await self._loader.find_base(named, lora_rank=rank, fingerprint=fingerprint)
        named = replace(named, base=base)
        await self._loader.check(named, lora_rank=rank)
        return await self._loader.to_the_end(self._add(named, is_session))

    async def _add(self, upload: Upload, is_session: bool) -> HeldAdapter:
        async with self._lock:
            adapter = self._same_content(upload)
            if adapter is None:
                if self._is_full(is_session):
                    await self._make_room(upload.name, is_session)
                adapter = self._held[upload.name] = await self._load(upload)
                logger.info(
                    "frozen adapter: %s (%d of %d held)", upload.name, len(self._held), MAX_FROZEN
                )
            if is_session:
                self._of_session.add(adapter.name)
            self.touch(adapter)
            return adapter

    def _same_content(self, upload: Upload) -> HeldAdapter | None:
        """Return the held adapter with the content of an upload; its name is a digest of that."""
        for adapter in self._held.values():
            if adapter.adapter == upload.adapter and adapter.base == upload.base:
                return adapter
        return None

    def _is_full(self, is_session: bool) -> bool:
        if len(self._held) >= MAX_FROZEN:
            return True
        return not is_session and len(self._guests()) >= MAX_FROZEN - RESERVED

    def _guests(self) -> list[HeldAdapter]:
        """Return the held adapters that the session's trainer did not upload."""
        guests = []
        for name, adapter in self._held.items():
            if name not in self._of_session:
                guests.append(adapter)
        return guests

    async def _make_room(self, name: str, is_session: bool) -> None:
        """Drop the least recently used adapter that no rollout uses and the upload may replace."""
        replaceable = list(self._held.values()) if is_session else self._guests()
        idle = next((adapter for adapter in replaceable if not adapter.users), None)
        if idle is None:
            kept = f", {RESERVED} are reserved for the session's trainer" if not is_session else ""
            raise BusyError(
                f"{name}: all {len(replaceable)} slots for frozen adapters that it may use are "
                f"in use ({users_of(replaceable)}){kept}. Wait for those games or end their "
                "clients, then send it again."
            )
        # Removed from the map before anything is awaited, so that no rollout can take it anymore.
        del self._held[idle.name]
        self._of_session.discard(idle.name)
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
                f"{upload.name} could not be loaded; nothing else changed: {error}"
            ) from error
        return adapter
