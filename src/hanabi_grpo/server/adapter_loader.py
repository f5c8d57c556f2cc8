"""One adapter's way: upload checked, files written, engine told; and back, files last.

Whatever touches all bytes of an adapter happens in a thread: hashing, checking, writing, reading, removing.
"""

import asyncio
import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.server.adapter_files import Shapes, check_adapter, max_adapter_bytes
from hanabi_grpo.server.adapter_folders import OwnedFolder, adapter_home

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


class LoraEngine(Protocol):
    """The two engine calls that adapters need."""

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        """Load a PEFT folder; return the handle that generation takes."""

    async def unload_adapter(self, number: int) -> None:
        """Forget a loaded adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An adapter as its sender describes it."""

    adapter: str
    version: int
    """Optimizer steps behind the weights."""
    body: bytes
    """safetensors in PEFT's naming."""
    sha256: str
    """Of `body`, as the sender computed it."""
    config: Mapping[str, Any]
    """The PEFT configuration."""

    @property
    def name(self) -> str:
        """Name in seats and in messages, e.g. "player_0@7"."""
        return f"{self.adapter}@{self.version}"


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
        """Name in the engine, in seats and in messages, e.g. "player_0@7"."""
        return f"{self.adapter}@{self.version}"

    @property
    def receipt(self) -> dict[str, Any]:
        """What the trainer checks its push against."""
        digests = {"sha256": self.sha256, "config_sha256": self.config_sha256}
        return {"version": self.version, **digests, "lora_name": self.name}


def users_of(adapters: Iterable[HeldAdapter]) -> str:
    """Return who uses adapters, for messages."""
    return ", ".join(f"{held.name} by {held.users} rollout(s)" for held in adapters)


class AdapterLoader:
    """Moves adapters between uploads, disk and engine; who holds which is for its callers to know."""

    def __init__(self, engine: LoraEngine, home: Path | None, *, shapes: Shapes, max_rank: int, dtype: str) -> None:
        """Bind the engine and a place on disk, see `AdapterStore`."""
        self.folder = OwnedFolder(home or adapter_home())
        self.max_rank = max_rank
        self.max_upload_bytes = max_adapter_bytes(shapes, max_rank)
        self._engine, self._shapes, self._dtype = engine, shapes, dtype
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        """What must come to its end even when the request that began it is gone."""

    async def check(self, upload: Upload, *, lora_rank: int) -> None:
        """Refuse an upload whose bytes are not those that were sent, or must not be loaded (`check_adapter`).

        Raises:
            AdapterError: Says why.
        """

        def check() -> None:
            digest, sent = _sha256(upload.body), upload.sha256
            if digest != sent:
                text = f"body has sha256 {digest[:16]}…, header says {sent[:16]}…; resend it."
                raise AdapterError(f"{upload.name}: {text}")
            shapes, dtype = self._shapes, self._dtype
            check_adapter(
                upload.body, upload.config, adapter=upload.name, lora_rank=lora_rank, shapes=shapes, dtype=dtype
            )

        await asyncio.to_thread(check)

    async def write(self, upload: Upload) -> HeldAdapter:
        """Write a checked upload to disk; nothing is loaded yet.

        Raises:
            AdapterError: The file system refused; nothing is left behind.
        """
        number = next(self._numbers)
        # A number in the path: vLLM keys its prefix cache by name and path, and no path may ever name two adapters.
        files = {_WEIGHTS: upload.body, _CONFIG: json.dumps(dict(upload.config)).encode()}
        folder = await asyncio.to_thread(self.folder.write, f"{upload.name}-{number}", files)
        config_sha256 = config_digest(upload.config)
        return HeldAdapter(upload.adapter, upload.version, upload.sha256, config_sha256, folder, number)

    async def load(self, *adapters: HeldAdapter) -> None:
        """Load every one of these into the engine, or none; their files stay.

        Raises:
            AdapterError: The files are not those that were sent. Whatever the engine raises comes through as it is.
        """
        loaded: list[HeldAdapter] = []
        try:
            for held in adapters:
                held.lora = await self._engine.load_adapter(held.name, held.number, str(held.folder))
                loaded.append(held)
                await asyncio.to_thread(_check_files, held)
        except BaseException:
            for held in loaded:
                await self._unload(held)
            raise

    async def _unload(self, held: HeldAdapter) -> None:
        held.lora = None
        try:
            await self._engine.unload_adapter(held.number)
        except Exception as error:
            # No request names it again, so all it costs is its place in the engine.
            logger.warning("%s stays in the engine, unused: %s: %s", held.name, type(error).__name__, error)

    async def drop(self, held: HeldAdapter, *, loaded: bool) -> None:
        """Make the engine forget an adapter that no request will name again, and then remove its files.

        The engine reloads from the files what it has no room for, and dies without them.
        """
        if loaded:
            await self._unload(held)
        await asyncio.to_thread(shutil.rmtree, held.folder, ignore_errors=True)

    async def to_the_end(self, work: Coroutine[Any, Any, _Result]) -> _Result:
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


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _check_files(held: HeldAdapter) -> None:
    weights = _sha256((held.folder / _WEIGHTS).read_bytes())
    config = config_digest(json.loads((held.folder / _CONFIG).read_bytes()))
    if (weights, config) != (held.sha256, held.config_sha256):
        raise AdapterError(f"{held.name}: the files that were loaded are not those that were sent; push again.")
