"""Versions of every player's adapter: staged, committed all together, served, and dropped when unused."""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hanabi_grpo.errors import AdapterError, VersionError
from hanabi_grpo.server.adapter_files import Shapes, check_adapter

_PREFIX = "hanabi-adapters-"


class LoraEngine(Protocol):
    """The two engine calls that the store needs."""

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        """Load a PEFT folder; return the handle that generation takes."""

    async def unload_adapter(self, number: int) -> None:
        """Forget a loaded adapter."""


@dataclass(slots=True)
class HeldAdapter:
    """One version of one adapter, on disk and perhaps in the engine."""

    adapter: str
    version: int
    sha256: str
    folder: Path
    number: int
    lora: Any = None
    users: int = 0
    """Rollouts in flight that sample from it."""

    @property
    def receipt(self) -> dict[str, Any]:
        """What the trainer checks its push against."""
        return {"version": self.version, "sha256": self.sha256, "lora_name": f"{self.adapter}@{self.version}"}


@dataclass(slots=True)
class Session:
    """The trainer that the server works for now."""

    run_id: str
    adapters: tuple[str, ...]
    lora_rank: int
    served: dict[str, HeldAdapter] = field(default_factory=dict)
    staged: dict[str, HeldAdapter] = field(default_factory=dict)


def remove_leftovers(home: Path) -> None:
    """Remove the adapter folders of servers that were killed and could not do it themselves."""
    for folder in home.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


class AdapterStore:
    """All adapter versions that this server holds. Used from one event loop."""

    def __init__(self, engine: LoraEngine, *, max_rank: int, shapes: Shapes) -> None:
        """Keep adapters for `engine`, of at most `max_rank` and for a base model of these `shapes`.

        Files go to memory-backed storage where the machine has it.
        """
        self._engine = engine
        self._max_rank = max_rank
        self._shapes = shapes
        home = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
        remove_leftovers(home)
        self._root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=home))
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self.session: Session | None = None

    async def open_session(self, run_id: str, adapters: Sequence[str], lora_rank: int) -> None:
        """Start serving another run; versions begin anew and the old run's adapters go.

        Raises:
            AdapterError: The rank is larger than the server was started for.
        """
        if lora_rank > self._max_rank:
            raise AdapterError(
                f"LORA_RANK={lora_rank}: this server was started with LORA_RANK={self._max_rank}. "
                f"Restart it with LORA_RANK={lora_rank} or train with at most {self._max_rank}."
            )
        async with self._lock:
            old = self.session
            self.session = Session(run_id=run_id, adapters=tuple(adapters), lora_rank=lora_rank)
            for held in [*old.served.values(), *old.staged.values()] if old else []:
                await self._retire(held)

    def stage(self, adapter: str, version: int, body: bytes, sha256: str, config: Mapping[str, Any]) -> HeldAdapter:
        """Check an upload and keep it on disk, not yet served.

        Raises:
            AdapterError: Unknown adapter, or bytes that must not be loaded.
            VersionError: Older than the served version, or the same version with other bytes.
        """
        session = self._session()
        if adapter not in session.adapters:
            raise AdapterError(f"adapter {adapter!r}: this session trains {', '.join(session.adapters)}.")
        digest = hashlib.sha256(body).hexdigest()
        if digest != sha256:
            raise AdapterError(
                f"{adapter}@{version}: body has sha256 {digest[:16]}…, header says {sha256[:16]}…; resend it."
            )
        served = session.served.get(adapter)
        for held in (session.staged.get(adapter), served):
            if held and held.version == version:
                if held.sha256 == digest:
                    return held
                raise VersionError(
                    f"{adapter}@{version} is held with other bytes ({held.sha256[:16]}…); push a newer version."
                )
        if served and version < served.version:
            raise VersionError(f"{adapter}@{version} is older than the served version {served.version}.")
        check_adapter(body, config, adapter=adapter, lora_rank=session.lora_rank, shapes=self._shapes)
        number = next(self._numbers)
        folder = self._root / f"{adapter}@{version}-{number}"
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(body)
        (folder / "adapter_config.json").write_text(json.dumps(dict(config)))
        previous = session.staged.get(adapter)
        if previous:
            shutil.rmtree(previous.folder, ignore_errors=True)
        held = HeldAdapter(adapter, version, digest, folder, number)
        session.staged[adapter] = held
        return held

    async def commit(self, version: int) -> dict[str, dict[str, Any]]:
        """Serve a staged version of every adapter, or of none.

        Returns:
            Per adapter its receipt.

        Raises:
            VersionError: Not every adapter is staged with this version.
            AdapterError: The engine refused one; the old version stays served.
        """
        async with self._lock:
            session = self._session()
            if {held.version for held in session.served.values()} == {version} and not session.staged:
                return {name: held.receipt for name, held in session.served.items()}
            missing = [
                name for name in session.adapters if getattr(session.staged.get(name), "version", None) != version
            ]
            if missing:
                raise VersionError(
                    f"commit of version {version}: nothing staged for {', '.join(missing)}; put them first."
                )
            loaded: list[HeldAdapter] = []
            try:
                for held in session.staged.values():
                    held.lora = await self._engine.load_adapter(
                        f"{held.adapter}@{held.version}", held.number, str(held.folder)
                    )
                    loaded.append(held)
                    on_disk = hashlib.sha256((held.folder / "adapter_model.safetensors").read_bytes()).hexdigest()
                    if on_disk != held.sha256:
                        raise AdapterError(
                            f"{held.adapter}@{version}: the file that was loaded has other bytes than the upload."
                        )
            except Exception as error:
                for held in loaded:
                    await self._engine.unload_adapter(held.number)
                    held.lora = None
                raise AdapterError(
                    f"commit of version {version} failed, the old version stays served: {error}"
                ) from error
            old, session.served, session.staged = session.served, dict(session.staged), {}
            for held in old.values():
                await self._retire(held)
            return {name: held.receipt for name, held in session.served.items()}

    @contextlib.asynccontextmanager
    async def lease(self, wanted: Mapping[str, int] | None) -> AsyncIterator[dict[str, HeldAdapter]]:
        """Hold the served adapters while a rollout samples from them.

        Args:
            wanted: Version that each adapter must have; None takes what is served.

        Raises:
            VersionError: Another version is served; nothing else is ever sampled instead.
        """
        served = dict(self.session.served) if self.session else {}
        for adapter, version in (wanted or {}).items():
            have = served.get(adapter)
            if have is None or have.version != version:
                raise VersionError(
                    f"{adapter}@{version} is required, but this server holds "
                    f"{f'{adapter}@{have.version}' if have else 'no version of it'}; push it first."
                )
        leased = served if wanted is None else {name: served[name] for name in wanted}
        for held in leased.values():
            held.users += 1
        try:
            yield leased
        finally:
            for held in leased.values():
                held.users -= 1
                if held.users == 0 and (self.session is None or self.session.served.get(held.adapter) is not held):
                    await self._drop(held)

    def check_run(self, run_id: str | None) -> None:
        """Refuse a trainer whose session another run has taken over; its weights must not be mixed in."""
        session = self._session()
        if run_id != session.run_id:
            raise VersionError(
                f"run {run_id} is not the one that this server works for ({session.run_id}): another trainer or an "
                "evaluation opened a session. One at a time: stop it, restart this trainer, or use a second server."
            )

    def versions(self) -> dict[str, int]:
        """Return the served version of every adapter."""
        return {name: held.version for name, held in self.session.served.items()} if self.session else {}

    def close(self) -> None:
        """Remove every file."""
        shutil.rmtree(self._root, ignore_errors=True)

    def _session(self) -> Session:
        if self.session is None:
            raise VersionError("no trainer has opened a session on this server; POST /session first.")
        return self.session

    async def _retire(self, held: HeldAdapter) -> None:
        if held.users == 0:
            await self._drop(held)

    async def _drop(self, held: HeldAdapter) -> None:
        if held.lora is not None:
            held.lora = None
            await self._engine.unload_adapter(held.number)
        shutil.rmtree(held.folder, ignore_errors=True)
