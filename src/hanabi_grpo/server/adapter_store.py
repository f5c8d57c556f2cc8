"""Versions of every player's adapter: staged, committed all together, served, and dropped when unused."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hanabi_grpo.errors import AdapterError, SessionError, VersionError
from hanabi_grpo.handshake import SessionRequest, config_digest
from hanabi_grpo.server.adapter_files import Shapes, check_adapter, max_adapter_bytes
from hanabi_grpo.server.adapter_folders import AdapterFolders, adapter_home
from hanabi_grpo.server.sessions import Ownership, Session, versions_to_drop

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

MAX_VERSIONS = 3
"""Of one adapter in the engine: the served one and older ones that games still use. The engine has room for as many
(`max_cpu_loras`)."""
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


class LoraEngine(Protocol):
    """The two engine calls that the store needs."""

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        """Load a PEFT folder; return the handle that generation takes."""

    async def unload_adapter(self, number: int) -> None:
        """Forget a loaded adapter."""


@dataclass(slots=True, eq=False)
class HeldAdapter:
    """One version of one adapter, on disk and perhaps in the engine."""

    adapter: str
    version: int
    sha256: str
    config_sha256: str
    folder: Path
    number: int
    lora: Any = None
    users: int = 0
    """Rollouts in flight that sample from it."""

    @property
    def name(self) -> str:
        """Name in the engine and in messages, e.g. "player_0@7"."""
        return f"{self.adapter}@{self.version}"

    @property
    def receipt(self) -> dict[str, Any]:
        """What the trainer checks its push against."""
        return {
            "version": self.version,
            "sha256": self.sha256,
            "config_sha256": self.config_sha256,
            "lora_name": self.name,
        }


class AdapterStore:
    """All adapter versions that this server holds. Used from one event loop."""

    def __init__(
        self,
        engine: LoraEngine,
        *,
        max_rank: int,
        shapes: Shapes,
        session_timeout: float = 60.0,
        home: Path | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep adapters for `engine`.

        Args:
            engine: Loads and unloads them.
            max_rank: Largest LoRA rank; bounds an upload.
            shapes: What an adapter of the base model covers.
            session_timeout: Seconds of silence after which another trainer may take over.
            home: Where the files go; None: memory-backed storage where the machine has it.
            clock: See `Ownership`.
        """
        self._engine = engine
        self._shapes = shapes
        self._folders = AdapterFolders(home or adapter_home())
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        """What must come to its end even when the request that began it is gone."""
        self._ownership = Ownership(session_timeout, **({"clock": clock} if clock else {}))
        self._served: dict[str, HeldAdapter] = {}
        self._staged: dict[str, HeldAdapter] = {}
        self._loaded: dict[int, HeldAdapter] = {}
        """Everything that the engine may hold: what is served, and older versions until their games end."""
        self._loading: frozenset[int] = frozenset()
        """Numbers of what a commit works on: an upload that comes meanwhile must leave their files alone."""
        self.max_upload_bytes = max_adapter_bytes(shapes, max_rank)

    @property
    def session(self) -> Session | None:
        """The trainer that opened the last session; it may have left since."""
        return self._ownership.session

    async def open_session(self, wanted: SessionRequest) -> None:
        """Give the server to a trainer that fits it.

        Another run begins with no versions. The same run finds those that it pushed before.

        Raises:
            SessionError: Another trainer is alive.
            VersionError: Newer versions of this run are held, see `versions_to_drop`.
        """
        # Also before the lock, so that a stranger need not wait for a commit.
        self._ownership.refuse_stranger(wanted)
        async with self._lock:
            self._ownership.refuse_stranger(wanted)
            old = self.session
            dropped = versions_to_drop(old, wanted, self.versions())
            session = self._ownership.open(wanted)
            leaving: list[HeldAdapter] = []
            if session is not old:
                leaving += self._staged.values()
                self._staged = {}
            if old is not None and (old.run_id, old.adapters, old.lora_rank) != (
                session.run_id,
                session.adapters,
                session.lora_rank,
            ):
                dropped = self.versions()
            if dropped:
                leaving += [self._served[name] for name in dropped]
                self._served = {name: held for name, held in self._served.items() if name not in dropped}
                logger.info("session: dropping %s", ", ".join(f"{name}@{number}" for name, number in dropped.items()))
            await self._to_the_end(self._retire(*leaving))

    def check_owner(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that is not from the session's trainer; its weights must not be mixed in.

        Raises:
            SessionError: No session is open, or it is another trainer's.
        """
        self._ownership.check(headers)

    def release(self, headers: Mapping[str, str]) -> None:
        """Let another trainer in at once; what is served stays served.

        Raises:
            SessionError: As `check_owner`.
        """
        self._ownership.release(headers)

    def check_upload(self, adapter: str, version: int) -> None:
        """Refuse what can be refused before an upload's body is read.

        Raises:
            AdapterError: Unknown adapter.
            VersionError: Older than the served version.
        """
        session = self._session()
        if adapter not in session.adapters:
            raise AdapterError(f"adapter {adapter[:80]!r}: this session trains {', '.join(session.adapters)}.")
        served = self._served.get(adapter)
        if served and version < served.version:
            raise VersionError(
                f"{adapter}@{version} is older than the served version {served.version}; push a newer one."
            )

    def stage(self, adapter: str, version: int, body: bytes, sha256: str, config: Mapping[str, Any]) -> HeldAdapter:
        """Check an upload and keep it on disk, not yet served.

        Raises:
            AdapterError: Unknown adapter, bytes that must not be loaded, or a file system that refuses them.
            VersionError: Older than the served version, or the same version with other bytes.
        """
        self.check_upload(adapter, version)
        digest = hashlib.sha256(body).hexdigest()
        if digest != sha256:
            raise AdapterError(
                f"{adapter}@{version}: body has sha256 {digest[:16]}…, header says {sha256[:16]}…; resend it."
            )
        session = self._session()
        check_adapter(body, config, adapter=adapter, lora_rank=session.lora_rank, shapes=self._shapes)
        config_sha256 = config_digest(config)
        for held in (self._staged.get(adapter), self._served.get(adapter)):
            if held and held.version == version:
                if (held.sha256, held.config_sha256) == (digest, config_sha256):
                    return held
                what = "bytes" if held.sha256 != digest else "PEFT config"
                raise VersionError(
                    f"{held.name} is held with other {what} ({held.sha256[:16]}…, config {held.config_sha256[:16]}…); "
                    "push a newer version."
                )
        number = next(self._numbers)
        # A number in the path: vLLM keys its prefix cache by name and path, and no path may ever name two adapters.
        folder = self._folders.write(
            f"{adapter}@{version}-{number}", {_WEIGHTS: body, _CONFIG: json.dumps(dict(config)).encode()}
        )
        previous = self._staged.get(adapter)
        if previous and previous.number not in self._loading:
            self._folders.remove(previous.folder)
        self._staged[adapter] = HeldAdapter(adapter, version, digest, config_sha256, folder, number)
        return self._staged[adapter]

    async def commit(self, version: int) -> dict[str, dict[str, Any]]:
        """Serve a staged version of every adapter, or of none.

        It runs to its end even when the caller is cancelled: a trainer that hangs up leaves no half of it.

        Returns:
            Per adapter its receipt.

        Raises:
            VersionError: Not every adapter is staged with this version, or games still hold too many older ones.
            SessionError: Another trainer took over before it began.
            AdapterError: The engine refused one; the old version stays served.
        """
        return await self._to_the_end(self._commit(version, self._session()))

    @contextlib.asynccontextmanager
    async def lease(self, wanted: Mapping[str, int] | None) -> AsyncIterator[dict[str, HeldAdapter]]:
        """Hold the served adapters while a rollout samples from them.

        Args:
            wanted: Version that each adapter must have; None takes what is served.

        Raises:
            VersionError: Another version is served; nothing else is ever sampled instead.
        """
        served = self._served
        for adapter, version in (wanted or {}).items():
            have = served.get(adapter)
            if have is None or have.version != version:
                raise VersionError(
                    f"{adapter}@{version} is required, but this server holds "
                    f"{have.name if have else 'no version of it'}; push it first."
                )
        leased = dict(served) if wanted is None else {name: served[name] for name in wanted}
        for held in leased.values():
            held.users += 1
        try:
            yield leased
        finally:
            for held in leased.values():
                held.users -= 1
            await self._to_the_end(self._retire(*leased.values()))

    def versions(self) -> dict[str, int]:
        """Return the served version of every adapter."""
        return {name: held.version for name, held in self._served.items()}

    def close(self) -> None:
        """Remove every file."""
        self._folders.close()

    def _session(self) -> Session:
        if self.session is None:
            raise SessionError("no trainer has opened a session on this server; open one first (POST /session/).")
        return self.session

    async def _commit(self, version: int, session: Session) -> dict[str, dict[str, Any]]:
        async with self._lock:
            if self.session is not session:
                raise SessionError(f"commit of version {version}: another trainer took over before it began.")
            if self.versions() == dict.fromkeys(session.adapters, version):
                return {name: held.receipt for name, held in self._served.items()}
            new = {name: self._staged.get(name) for name in session.adapters}
            chosen = {name: held for name, held in new.items() if held is not None and held.version == version}
            missing = [name for name in session.adapters if name not in chosen]
            if missing:
                raise VersionError(
                    f"commit of version {version}: nothing staged for {', '.join(missing)}; put them first."
                )
            self._check_room(session, version)
            self._loading = frozenset(held.number for held in chosen.values())
            try:
                await self._load(chosen, version)
            except BaseException:
                self._loading = frozenset()
                await self._retire(*chosen.values())
                raise
            # Nothing waits between these lines: a rollout sees the old versions of all players or the new ones.
            old, self._served, self._loading = self._served, chosen, frozenset()
            self._staged = {name: held for name, held in self._staged.items() if held is not chosen[name]}
            await self._retire(*old.values())
            return {name: held.receipt for name, held in chosen.items()}

    def _check_room(self, session: Session, version: int) -> None:
        for adapter in session.adapters:
            held = [one for one in self._loaded.values() if one.adapter == adapter]
            if len(held) >= MAX_VERSIONS:
                users = ", ".join(f"{one.name} by {one.users} rollout(s)" for one in held)
                raise VersionError(
                    f"commit of version {version}: the engine holds {len(held)} versions of {adapter} ({users}), at "
                    f"most {MAX_VERSIONS} fit. Wait for those games or end their clients, then commit again."
                )

    async def _load(self, chosen: Mapping[str, HeldAdapter], version: int) -> None:
        """Load every adapter into the engine, or none of them."""
        loaded: list[HeldAdapter] = []
        try:
            for held in chosen.values():
                held.lora = await self._engine.load_adapter(held.name, held.number, str(held.folder))
                loaded.append(held)
                self._check_files(held)
        except BaseException as error:
            for held in loaded:
                held.lora = None
                await self._unload(held)
            if not isinstance(error, Exception):
                raise
            raise AdapterError(f"commit of version {version} failed, the old version stays served: {error}") from error
        self._loaded.update({held.number: held for held in loaded})

    def _check_files(self, held: HeldAdapter) -> None:
        weights = hashlib.sha256((held.folder / _WEIGHTS).read_bytes()).hexdigest()
        config = config_digest(json.loads((held.folder / _CONFIG).read_bytes()))
        if (weights, config) != (held.sha256, held.config_sha256):
            raise AdapterError(f"{held.name}: the files that were loaded are not those that were sent; push again.")

    async def _to_the_end(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do work that a cancelled caller must not leave half done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The caller may have gone: then nobody else would ever hear of it.
            logger.warning("%s", task.exception())

    async def _retire(self, *versions: HeldAdapter) -> None:
        """Drop versions that nothing serves and no game uses; called whenever one of these ends."""
        for held in versions:
            if held.users or self._served.get(held.adapter) is held or self._staged.get(held.adapter) is held:
                continue
            self._folders.remove(held.folder)
            if self._loaded.pop(held.number, None) is not None:
                held.lora = None
                await self._unload(held)

    async def _unload(self, held: HeldAdapter) -> None:
        try:
            await self._engine.unload_adapter(held.number)
        except Exception as error:
            # No request names it again, so all it costs is its place in the engine.
            logger.warning("%s stays in the engine, unused: %s: %s", held.name, type(error).__name__, error)
