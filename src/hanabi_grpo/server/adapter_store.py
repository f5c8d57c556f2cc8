"""Versions of every player's adapter: staged, committed together, served, dropped when unused."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hanabi_grpo.agents.served_model import ONLY_BASE
from hanabi_grpo.errors import AdapterError, BusyError, SessionError, VersionError
from hanabi_grpo.rollout.handshake import SessionRequest
from hanabi_grpo.rollout.sampler import Sampler
from hanabi_grpo.server.adapter_files import Shapes
from hanabi_grpo.server.adapter_loader import (
    MAX_VERSIONS,
    AdapterBase,
    AdapterLoader,
    HeldAdapter,
    Upload,
    users_of,
)
from hanabi_grpo.server.frozen_adapters import FrozenAdapters
from hanabi_grpo.server.sessions import Ownership, Session, versions_to_drop
from hanabi_grpo.settings.refs import is_frozen

logger = logging.getLogger(__name__)

PROBE = "probe_"
"""Prefix for the name of a probed adapter, in the engine and in files."""
_SHOWN_NAME = 80
"""Characters of an unknown adapter's name in a message."""
_SHOWN_DIGEST = 16
"""Characters of a digest in a message."""

Receipts = dict[str, dict[str, Any]]
"""Adapter to its `HeldAdapter.receipt`."""


class AdapterStore:
    """All adapter versions that this server holds. Used from one event loop."""

    def __init__(
        self,
        engine: Sampler,
        *,
        max_rank: int,
        shapes: Shapes,
        dtype: str = "float32",
        session_timeout: float = 60.0,
        home: Path | None = None,
        name: str = ONLY_BASE,
        fingerprint: str = "",
        others: Sequence[AdapterBase] = (),
        base_of: Mapping[str, str] | None = None,
    ) -> None:
        """Begin with no adapters.

        Args:
            engine: The engine that loads adapters.
            max_rank: Largest rank of an upload.
            shapes: The modules that an adapter of the base model covers.
            dtype: Number format in which the engine holds adapters.
            session_timeout: Seconds of a trainer's silence after which another may take over.
            home: Parent folder of the adapters' files; None: memory-backed storage if the machine
                has it.
            name: Name of the base model, if there are several.
            fingerprint: Fingerprint of the base model.
            others: The other base models of a team.
            base_of: The name of each player's base model, if there are several.
        """
        self.ownership = Ownership(session_timeout)
        first = AdapterBase(name=name, engine=engine, shapes=shapes, fingerprint=fingerprint)
        self._base_of = base_of or {}
        self._first_base = name
        self._loader = AdapterLoader((first, *others), home, max_rank=max_rank, dtype=dtype)
        self.folder = self._loader.folder
        self.max_upload_bytes = self._loader.max_upload_bytes
        self._lock = asyncio.Lock()
        self._probe_lock = asyncio.Lock()
        self._served: dict[str, HeldAdapter] = {}
        self._staged: dict[str, HeldAdapter] = {}
        self._loaded: dict[int, HeldAdapter] = {}
        """By number, all session adapters that the engine may hold: the served ones, and older
        versions until their games end."""
        self._loading: frozenset[int] = frozenset()
        """Numbers of the adapters that a commit is loading; concurrent uploads must leave their
        files alone."""
        self.frozen = FrozenAdapters(self._loader)
        """Guest adapters; sessions, commits and releases leave them alone."""

    async def open_session(self, wanted: SessionRequest) -> None:
        """Give the server to a matching trainer.

        A different run begins with no versions. The same run keeps the versions that it pushed.

        Raises:
            SessionError: Another run's session is alive, see `Ownership.refuse_stranger`.
            VersionError: The server holds newer versions, see `versions_to_drop`.
        """
        async with self._lock:
            self.ownership.refuse_stranger(wanted)
            old_session = self.ownership.session
            dropped = versions_to_drop(old_session, wanted, self.versions())
            leaving = [self._served.pop(name) for name in dropped]
            if self.ownership.open(wanted) is not old_session:
                leaving += self._staged.values()
                self._staged = {}
                self.frozen.begin_session()
            if dropped:
                names = ", ".join(f"{name}@{version}" for name, version in dropped.items())
                logger.info("session: dropping %s", names)
            await self._loader.to_the_end(self._retire(*leaving))

    def _check_trained(self, adapter: str) -> None:
        trained = self.ownership.current().trainer.adapters
        if adapter not in trained:
            raise AdapterError(
                f"adapter {adapter[:_SHOWN_NAME]!r}: this session trains {', '.join(trained)}."
            )

    def _check_upload(self, adapter: str, version: int) -> None:
        self._check_trained(adapter)
        served = self._served.get(adapter)
        if served and version < served.version:
            raise VersionError(
                f"{adapter}@{version} is older than the served version {served.version}; push a "
                "newer one."
            )

    async def stage(self, upload: Upload) -> HeldAdapter:
        """Check an upload and keep it on disk, not yet served.

        It runs to its end even when the caller is cancelled.

        Returns:
            The held adapter of this version; the same upload sent twice is held once.

        Raises:
            AdapterError: The upload must not be loaded.
            VersionError: It is older than the served version, or the version is already held with
                different bytes.
            SessionError: Another trainer took over in the meantime.
        """
        self._check_upload(upload.adapter, upload.version)
        # A session's adapter is on the base model of its player.
        upload = replace(upload, base=self._base_of.get(upload.adapter, self._first_base))
        return await self._loader.to_the_end(self._stage(upload, self.ownership.current()))

    async def _stage(self, upload: Upload, session: Session) -> HeldAdapter:
        await self._loader.check(upload, lora_rank=session.trainer.rank_of(upload.adapter))
        new = await self._loader.write(upload)
        kept = None
        try:
            # Looked up only now: other requests ran in the meantime, and two uploads of one version
            # may have arrived together.
            kept = self._same_upload(new, session) or new
        finally:
            if kept is not new:
                await self._loader.drop(new, loaded=False)
        if kept is new:
            previous = self._staged.get(new.adapter)
            self._staged[new.adapter] = new
            if previous and previous.number not in self._loading:
                await self._loader.drop(previous, loaded=False)
        return kept

    def _same_upload(self, new: HeldAdapter, session: Session) -> HeldAdapter | None:
        """Return the held adapter of an identical upload; None: this version is not held.

        Raises as `stage`.
        """
        if self.ownership.session is not session:
            raise SessionError(
                f"upload of {new.name}: another trainer took over before it was finished."
            )
        self._check_upload(new.adapter, new.version)
        for held in (self._staged.get(new.adapter), self._served.get(new.adapter)):
            if held is None or held.version != new.version:
                continue
            if held.sha256 == new.sha256 and held.config_sha256 == new.config_sha256:
                return held
            difference = "sha256" if held.sha256 != new.sha256 else "PEFT config"
            raise VersionError(
                f"{held.name} is already held with a different {difference} "
                f"({held.sha256[:_SHOWN_DIGEST]}…, config {held.config_sha256[:_SHOWN_DIGEST]}…); "
                "push a newer version."
            )
        return None

    async def commit(self, version: int) -> Receipts:
        """Serve a staged version of all adapters, or of none.

        It runs to its end even when the caller is cancelled, so that a trainer that disconnects
        does not leave a partial commit.

        Returns:
            The receipt of each adapter.

        Raises:
            VersionError: Not every adapter has this version staged.
            BusyError: Games still hold too many older versions.
            AdapterError: The engine rejected one; the previous version is still served.
            SessionError: Another trainer took over in the meantime.
        """
        return await self._loader.to_the_end(self._commit(version, self.ownership.current()))

    async def _commit(self, version: int, session: Session) -> Receipts:
        async with self._lock:
            if self.ownership.session is not session:
                raise SessionError(
                    f"commit of version {version}: another trainer took over before it began."
                )
            trained = session.trainer.adapters
            is_served = self.versions() == dict.fromkeys(trained, version)
            if is_served:
                return {name: held.receipt for name, held in self._served.items()}
            chosen = self._staged_versions(trained, version)
            self._check_room(trained, version)
            await self._load_chosen(chosen, version)
            # No await between these lines: a rollout sees the old versions of all players, or the
            # new versions of all.
            replaced = self._served
            self._served = chosen
            self._loading = frozenset()
            for name, adapter in chosen.items():
                if self._staged.get(name) is adapter:
                    del self._staged[name]
            await self._retire(*replaced.values())
            return {name: held.receipt for name, held in chosen.items()}

    def _staged_versions(self, adapters: list[str], version: int) -> dict[str, HeldAdapter]:
        """Return the staged adapters of a version; raise a VersionError if one is missing."""
        chosen = {}
        missing = []
        for name in adapters:
            staged = self._staged.get(name)
            if staged is None or staged.version != version:
                missing.append(name)
            else:
                chosen[name] = staged
        if missing:
            raise VersionError(
                f"commit of version {version}: nothing staged for {', '.join(missing)}; upload "
                "them first (PUT /adapters/)."
            )
        return chosen

    def _check_room(self, adapters: list[str], version: int) -> None:
        """Raise a BusyError if the engine has no room for another version of an adapter."""
        for adapter in adapters:
            loaded = [held for held in self._loaded.values() if held.adapter == adapter]
            if len(loaded) >= MAX_VERSIONS:
                raise BusyError(
                    f"commit of version {version}: the engine holds {len(loaded)} versions of "
                    f"{adapter} ({users_of(loaded)}), at most {MAX_VERSIONS} fit. Wait for those "
                    "games or end their clients, then commit again."
                )

    async def _load_chosen(self, chosen: Mapping[str, HeldAdapter], version: int) -> None:
        """Load all adapters of a commit into the engine, or none."""
        self._loading = frozenset(adapter.number for adapter in chosen.values())
        try:
            await self._loader.load(*chosen.values())
        except BaseException as error:
            self._loading = frozenset()
            await self._retire(*chosen.values())
            if not isinstance(error, Exception):
                raise
            raise AdapterError(
                f"commit of version {version} failed, the old version is still served: {error}"
            ) from error
        for adapter in chosen.values():
            self._loaded[adapter.number] = adapter

    @contextlib.asynccontextmanager
    async def lease(self, wanted: Mapping[str, int]) -> AsyncIterator[dict[str, HeldAdapter]]:
        """Hold adapters, the session's or guests, while a rollout samples from them.

        Args:
            wanted: The required version of each adapter.

        Yields:
            The adapters by name.

        Raises:
            VersionError: An adapter is not held in that version.
        """
        leased = {name: self._find(name, version) for name, version in wanted.items()}
        for held in leased.values():
            held.users += 1
        try:
            yield leased
        finally:
            of_session = []
            for held in leased.values():
                held.users -= 1
                if is_frozen(held.name):
                    self.frozen.touch(held)
                else:
                    of_session.append(held)
            await self._loader.to_the_end(self._retire(*of_session))

    @contextlib.asynccontextmanager
    async def probing(self, upload: Upload) -> AsyncIterator[HeldAdapter]:
        """Load an adapter for a probe, and drop it at the end of the block.

        It is handled like every upload: the same checks, files and engine call. No seat can name
        it, and it does not count as a version. Only one is held at a time.

        Args:
            upload: An adapter of the session, with other weights.

        Yields:
            The adapter, in the engine.

        Raises:
            AdapterError: The session does not train such an adapter, or the upload must not be
                loaded.
        """
        session = self.ownership.current()
        self._check_trained(upload.adapter)
        base = self._base_of.get(upload.adapter, self._first_base)
        rank = session.trainer.rank_of(upload.adapter)
        named = replace(upload, adapter=f"{PROBE}{upload.adapter}", base=base)
        await self._loader.check(named, lora_rank=rank)
        async with self._probe_lock:
            held = await self._loader.write(named)
            is_loaded = False
            try:
                await self._load_probe(held)
                is_loaded = True
                yield held
            finally:
                await self._loader.drop(held, loaded=is_loaded)

    async def _load_probe(self, held: HeldAdapter) -> None:
        try:
            await self._loader.load(held)
        except Exception as error:
            raise AdapterError(
                f"{held.name} could not be loaded; nothing else changed: {error}"
            ) from error

    def _find(self, adapter: str, version: int) -> HeldAdapter:
        if is_frozen(f"{adapter}@{version}"):
            return self.frozen.find(adapter, version)
        served = self._served.get(adapter)
        if served is None or served.version != version:
            raise VersionError(
                f"{adapter}@{version} is required, but this server holds "
                f"{served.name if served else 'no version of it'}; push it first."
            )
        return served

    def served(self) -> dict[str, dict[str, Any]]:
        """Return version and sha256 of every served adapter of the session."""
        adapters = {}
        for name, held in self._served.items():
            adapters[name] = {"version": held.version, "sha256": held.sha256}
        return adapters

    def versions(self) -> dict[str, int]:
        """Return the served version of every adapter of the session."""
        return {name: held.version for name, held in self._served.items()}

    def close(self) -> None:
        """Remove all files."""
        self.folder.close()

    async def _retire(self, *versions: HeldAdapter) -> None:
        """Drop versions that are no longer served, staged or used; called when that may change."""
        for held in versions:
            is_served = self._served.get(held.adapter) is held
            is_staged = self._staged.get(held.adapter) is held
            if held.users or is_served or is_staged or held.is_leaving:
                continue
            # Its last users may end at the same moment; the second must not remove the files while
            # the first still waits for the engine.
            held.is_leaving = True
            was_loaded = self._loaded.pop(held.number, None) is not None
            await self._loader.drop(held, loaded=was_loaded)
