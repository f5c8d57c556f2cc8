"""One adapter's way: upload checked, files written, engine told; and back, files last.

Whatever touches all bytes of an adapter happens in a thread: hashing, checking, writing, reading,
removing."""

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.server.adapter_files import Shapes, check_adapter, max_adapter_bytes
from hanabi_grpo.server.engine import Engine

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

LOCK = ".lock"
_PREFIX = "hanabi-adapters-"
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An adapter as its sender describes it: safetensors in PEFT's naming, their sha256 and the
    PEFT configuration.
    """

    adapter: str
    version: int
    """Optimizer steps behind the weights."""
    body: bytes
    sha256: str
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name in the engine, in seats and in messages, e.g. "player_0@7"."""
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
        """As `Upload.name`."""
        return f"{self.adapter}@{self.version}"

    @property
    def receipt(self) -> dict[str, Any]:
        """What the trainer checks its push against."""
        digests = {"sha256": self.sha256, "config_sha256": self.config_sha256}
        return {"version": self.version, **digests, "lora_name": self.name}


def users_of(adapters: Iterable[HeldAdapter]) -> str:
    """Return who uses adapters, for messages."""
    return ", ".join(f"{held.name} by {held.users} rollout(s)" for held in adapters)


def adapter_home() -> Path:
    """Return where servers keep their adapters: memory-backed storage where the machine has it."""
    home = Path("/dev/shm")
    return home if home.is_dir() else Path(tempfile.gettempdir())


class OwnedFolder:
    """A new folder that nobody takes for a leftover while this process, or a child forked from it,
    lives.

    Whoever finds one asks its lock whether the owner still lives. A process number would be the
    wrong question: servers in several containers may share one /dev/shm, and each sees the numbers
    of its own processes only. A lock is the kernel's and goes with its holder, kill -9 included.
    """

    def __init__(self, home: Path, prefix: str = _PREFIX) -> None:
        """Remove what killed processes left under `home` with this prefix, and make a folder of
        one's own there.
        """
        for folder in sorted(home.glob(f"{prefix}*")):
            _remove_leftover(folder)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        unlocked = self.path / f"{LOCK}.new"
        self._descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Named once it is held: until then the folder has no lock, and such folders are left alone.
        unlocked.rename(self.path / LOCK)

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a folder inside, which appears under its name once it is complete, or leave nothing
        behind.
        """
        folder, partial = self.path / name, self.path / f".{name}"
        try:
            partial.mkdir()
            for file, content in files.items():
                (partial / file).write_bytes(content)
            partial.rename(folder)
        except OSError as error:
            num_bytes = sum(map(len, files.values()))
            raise AdapterError(
                f"{name}: its {num_bytes} bytes cannot be kept in {self.path.parent} "
                f"({error.strerror or error}); what "
                "is served stays served. Free space there on the server's machine, then push again."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def close(self) -> None:
        """Remove the folder and give the lock back; a second time is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_leftover(folder: Path) -> None:
    """Remove a folder whose owner is gone; one without a lock, a link, and one whose lock is held
    stay.
    """
    if folder.is_symlink():
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


class AdapterLoader:
    """Moves adapters between uploads, disk and engine; who holds which is for its callers to
    know.
    """

    def __init__(
        self, engine: Engine, home: Path | None, *, shapes: Shapes, max_rank: int, dtype: str
    ) -> None:
        self.folder = OwnedFolder(home or adapter_home())
        self.max_rank = max_rank
        self.max_upload_bytes = max_adapter_bytes(shapes, max_rank)
        self._engine, self._shapes, self._dtype = engine, shapes, dtype
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        """What must come to its end even when the request that began it is gone."""

    async def check(self, upload: Upload, *, lora_rank: int) -> None:
        """Refuse an upload whose bytes are not those that were sent, or must not be loaded
        (`check_adapter`).
        """
        digest, sent = await asyncio.to_thread(_sha256, upload.body), upload.sha256
        if digest != sent:
            raise AdapterError(
                f"{upload.name}: body has sha256 {digest[:16]}…, header says {sent[:16]}…; resend "
                "it."
            )
        await asyncio.to_thread(
            check_adapter,
            *(upload.body, upload.config),
            adapter=upload.name,
            lora_rank=lora_rank,
            shapes=self._shapes,
            dtype=self._dtype,
        )

    async def write(self, upload: Upload) -> HeldAdapter:
        """Write a checked upload to disk; nothing is loaded yet. Raises as `OwnedFolder.write`."""
        number = next(self._numbers)
        # A number in the path: vLLM keys its prefix cache by name and path, and no path may ever
        # name two adapters.
        files = {_WEIGHTS: upload.body, _CONFIG: json.dumps(dict(upload.config)).encode()}
        folder = await asyncio.to_thread(self.folder.write, f"{upload.name}-{number}", files)
        digests = upload.sha256, config_digest(upload.config)
        return HeldAdapter(upload.adapter, upload.version, *digests, folder, number)

    async def load(self, *adapters: HeldAdapter) -> None:
        """Load every one of these into the engine, or none; their files stay. Raises what the
        engine raises, too.
        """
        loaded: list[HeldAdapter] = []
        try:
            for held in adapters:
                held.lora = await self._engine.load_adapter(
                    held.name, held.number, str(held.folder)
                )
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
            logger.warning(
                "%s stays in the engine, unused: %s: %s", held.name, type(error).__name__, error
            )

    async def drop(self, held: HeldAdapter, *, loaded: bool) -> None:
        """Make the engine forget an adapter that no request will name again, and then remove its
        files.

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
        raise AdapterError(
            f"{held.name}: the files that were loaded are not those that were sent; push again."
        )
