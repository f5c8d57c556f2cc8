"""Versions of every player's adapter: staged, committed all together, served, and dropped when
unused.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import AdapterError, BusyError, SessionError, VersionError
from hanabi_grpo.rollout.handshake import SessionRequest
from hanabi_grpo.server.adapter_files import Shapes
from hanabi_grpo.server.adapter_loader import AdapterLoader, HeldAdapter, Upload, users_of
from hanabi_grpo.server.engine import MAX_VERSIONS, Engine
from hanabi_grpo.server.frozen_adapters import FrozenAdapters
from hanabi_grpo.server.sessions import Ownership, Session, versions_to_drop
from hanabi_grpo.settings.refs import is_frozen

logger = logging.getLogger(__name__)


class AdapterStore:
    """All adapter versions that this server holds. Used from one event loop.

    `max_rank` bounds an upload, `shapes` say what an adapter of the base model covers, and the
    engine holds adapters in `dtype`. Their files go to `home`; None: memory-backed storage where
    the machine has it."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_rank: int,
        shapes: Shapes,
        dtype: str = "float32",
        session_timeout: float = 60.0,
        home: Path | None = None,
    ) -> None:
        self.ownership = Ownership(session_timeout)
        self._loader = AdapterLoader(engine, home, shapes=shapes, max_rank=max_rank, dtype=dtype)
        self.folder, self.max_upload_bytes = self._loader.folder, self._loader.max_upload_bytes
        self._lock = asyncio.Lock()
        self._served: dict[str, HeldAdapter] = {}
        self._staged: dict[str, HeldAdapter] = {}
        self._loaded: dict[int, HeldAdapter] = {}
        """Everything that the engine may hold: what is served, and older versions until their games
        end.
        """
        self._loading: frozenset[int] = frozenset()
        """Numbers of what a commit works on: an upload that comes meanwhile must leave their files
        alone.
        """
        self.frozen = FrozenAdapters(self._loader)
        """What was lent to the server; sessions, commits and releases leave it alone."""

    async def open_session(self, wanted: SessionRequest) -> None:
        """Give the server to a trainer that fits it. Raises as `Ownership.refuse_stranger` and
        `versions_to_drop`.

        Another run begins with no versions. The same run finds those that it pushed before.
        """
        async with self._lock:
            self.ownership.refuse_stranger(wanted)
            old = self.ownership.session
            dropped = versions_to_drop(old, wanted, self.versions())
            leaving = [self._served.pop(name) for name in dropped]
            if self.ownership.open(wanted) is not old:
                leaving += self._staged.values()
                self._staged = {}
            if dropped:
                logger.info(
                    "session: dropping %s",
                    ", ".join(f"{name}@{number}" for name, number in dropped.items()),
                )
            await self._loader.to_the_end(self._retire(*leaving))

    def _check_upload(self, adapter: str, version: int) -> None:
        trained = self.ownership.current().trainer.adapters
        if adapter not in trained:
            raise AdapterError(
                f"adapter {adapter[:80]!r}: this session trains {', '.join(trained)}."
            )
        served = self._served.get(adapter)
        if served and version < served.version:
            raise VersionError(
                f"{adapter}@{version} is older than the served version {served.version}; push a "
                "newer one."
            )

    async def stage(self, upload: Upload) -> HeldAdapter:
        """Check an upload and keep it on disk, not yet served, to the end even when the caller is
        cancelled.

        An AdapterError says that it must not be loaded, a VersionError that it is too old or has
        other bytes than what is held of the version, a SessionError that another trainer took over.
        """
        self._check_upload(upload.adapter, upload.version)
        return await self._loader.to_the_end(self._stage(upload, self.ownership.current()))

    async def _stage(self, upload: Upload, session: Session) -> HeldAdapter:
        await self._loader.check(upload, lora_rank=session.trainer.lora_rank)
        new, held = await self._loader.write(upload), None
        try:
            # Only now, since others were served meanwhile: two uploads of one version may have come
            # together.
            held = self._held_already(new, session) or new
        finally:
            if held is not new:
                await self._loader.drop(new, loaded=False)
        if held is new:
            previous, self._staged[new.adapter] = self._staged.get(new.adapter), new
            if previous and previous.number not in self._loading:
                await self._loader.drop(previous, loaded=False)
        return held

    def _held_already(self, new: HeldAdapter, session: Session) -> HeldAdapter | None:
        """Return what is held of this very upload; None: nothing of this version. Raises as
        `stage`.
        """
        if self.ownership.session is not session:
            raise SessionError(
                f"upload of {new.name}: another trainer took over before it was done."
            )
        self._check_upload(new.adapter, new.version)
        for held in (self._staged.get(new.adapter), self._served.get(new.adapter)):
            if held and held.version == new.version:
                if (held.sha256, held.config_sha256) == (new.sha256, new.config_sha256):
                    return held
                what = "bytes" if held.sha256 != new.sha256 else "PEFT config"
                raise VersionError(
                    f"{held.name} is held with other {what} ({held.sha256[:16]}…, config "
                    f"{held.config_sha256[:16]}…); "
                    "push a newer version."
                )
        return None

    async def commit(self, version: int) -> dict[str, dict[str, Any]]:
        """Serve a staged version of every adapter, or of none, and return their receipts.

        It runs to its end even when the caller is cancelled: a trainer that hangs up leaves no half
        of it. A BusyError says that games still hold too many older versions, an AdapterError that
        the engine refused one."""
        return await self._loader.to_the_end(self._commit(version, self.ownership.current()))

    @contextlib.asynccontextmanager
    async def lease(self, wanted: Mapping[str, int]) -> AsyncIterator[dict[str, HeldAdapter]]:
        """Hold adapters, served or lent, while a rollout samples from them, and yield them by name.

        `wanted` says the version that each must have, a VersionError that it is not held.
        """
        leased = {name: self._find(name, version) for name, version in wanted.items()}
        for held in leased.values():
            held.users += 1
        try:
            yield leased
        finally:
            for held in leased.values():
                held.users -= 1
                if is_frozen(held.name):
                    self.frozen.touch(held)
            own = [held for held in leased.values() if not is_frozen(held.name)]
            await self._loader.to_the_end(self._retire(*own))

    def served(self) -> dict[str, dict[str, Any]]:
        """Return version and sha256 of every adapter that is served."""
        return {
            name: {"version": held.version, "sha256": held.sha256}
            for name, held in self._served.items()
        }

    def versions(self) -> dict[str, int]:
        """Return the served version of every adapter."""
        return {name: held.version for name, held in self._served.items()}

    def close(self) -> None:
        """Remove every file."""
        self.folder.close()

    def _find(self, adapter: str, version: int) -> HeldAdapter:
        if is_frozen(f"{adapter}@{version}"):
            return self.frozen.find(adapter, version)
        have = self._served.get(adapter)
        if have is None or have.version != version:
            raise VersionError(
                f"{adapter}@{version} is required, but this server holds "
                f"{have.name if have else 'no version of it'}; push it first."
            )
        return have

    async def _commit(self, version: int, session: Session) -> dict[str, dict[str, Any]]:
        async with self._lock:
            if self.ownership.session is not session:
                raise SessionError(
                    f"commit of version {version}: another trainer took over before it began."
                )
            trained = session.trainer.adapters
            if self.versions() == dict.fromkeys(trained, version):
                return {name: held.receipt for name, held in self._served.items()}
            staged = {name: held for name, held in self._staged.items() if held.version == version}
            missing = [name for name in trained if name not in staged]
            if missing:
                raise VersionError(
                    f"commit of version {version}: nothing staged for {', '.join(missing)}; put "
                    "them first."
                )
            chosen = {name: staged[name] for name in trained}
            self._check_room(trained, version)
            self._loading = frozenset(held.number for held in chosen.values())
            try:
                await self._loader.load(*chosen.values())
            except BaseException as error:
                self._loading = frozenset()
                await self._retire(*chosen.values())
                if not isinstance(error, Exception):
                    raise
                text = f"commit of version {version} failed, the old version stays served: {error}"
                raise AdapterError(text) from error
            self._loaded.update({held.number: held for held in chosen.values()})
            # Nothing waits between these lines: a rollout sees the old versions of all players or
            # the new ones.
            old, self._served, self._loading = self._served, chosen, frozenset()
            self._staged = {
                name: held for name, held in self._staged.items() if held is not chosen[name]
            }
            await self._retire(*old.values())
            return {name: held.receipt for name, held in chosen.items()}

    def _check_room(self, adapters: list[str], version: int) -> None:
        for adapter in adapters:
            held = [one for one in self._loaded.values() if one.adapter == adapter]
            if len(held) >= MAX_VERSIONS:
                raise BusyError(
                    f"commit of version {version}: the engine holds {len(held)} versions of "
                    f"{adapter} "
                    f"({users_of(held)}), at most {MAX_VERSIONS} fit. Wait for those games or end "
                    "their clients, then "
                    "commit again."
                )

    async def _retire(self, *versions: HeldAdapter) -> None:
        """Drop versions that nothing serves and no game uses; called whenever one of these ends."""
        for held in versions:
            if (
                held.users
                or self._served.get(held.adapter) is held
                or self._staged.get(held.adapter) is held
            ):
                continue
            await self._loader.drop(held, loaded=self._loaded.pop(held.number, None) is not None)
