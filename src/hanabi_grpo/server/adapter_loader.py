"""Loading of adapters: check, write to disk, load into the engine; in reverse, files go last.

All work on an adapter's bytes runs in a thread: hashing, checking, writing, reading, removing.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hanabi_grpo.agents.served_model import ONLY_BASE
from hanabi_grpo.errors import AdapterError, NoRoomError
from hanabi_grpo.rollout.sampler import AdapterHandle, Sampler
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.server.adapter_files import Shapes, check_adapter, max_adapter_bytes
from hanabi_grpo.settings.defaults import MAX_OVERLAP
from hanabi_grpo.settings.partners import MAX_GUEST_ADAPTERS

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

MAX_VERSIONS = MAX_OVERLAP + 2
"""Maximum versions of one session adapter in the engine: the served one, and older ones that games
still use. This is one more than HANABI_OVERLAP needs, since a request may end a moment after its
last game."""

MAX_FROZEN = MAX_GUEST_ADAPTERS
"""Guest adapters on one server, see `frozen_adapters`."""

MAX_PROBES = 1
"""Adapters that are loaded only for a probe, see `AdapterStore.probing`."""

LOCK = ".lock"
"""File in an `OwnedFolder` that its owner keeps locked while it is alive."""

_PREFIX = "hanabi-adapters-"
_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_OWNER_ONLY = 0o600
_FREE_SPACE = "Free space there"
_CLOSE_FILES = (
    "End clients that keep connections open, or start the server where ulimit -n allows more files"
)
_ROOM = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.ENOMEM: _FREE_SPACE,
    errno.EMFILE: _CLOSE_FILES,
    errno.ENFILE: _CLOSE_FILES,
}
"""Next step when the machine is out of a resource, by error number."""
_CLOSED = -1
"""Stands for a closed file descriptor."""
_SHOWN_FINGERPRINT = 16
"""Characters of a fingerprint in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBase:
    """A base model of a server, and the engine that loads adapters over it."""

    name: str
    """As spelled in MODEL; `ONLY_BASE` if the server has only one base model."""
    engine: Sampler
    """The engine that loads its adapters."""
    shapes: Shapes
    """The modules that its adapters cover."""
    fingerprint: str = ""
    """See `runs.fingerprint.model_fingerprint`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An adapter as its sender describes it."""

    adapter: str
    """Name without version, e.g. "player_0"."""
    version: int
    """Optimizer steps behind the weights."""
    body: bytes
    """The weights: safetensors in PEFT's naming."""
    sha256: str
    """Digest of the body, in hexadecimal digits."""
    config: Mapping[str, Any]
    """The PEFT configuration."""
    base: str = ONLY_BASE
    """The base model of the adapter, see `AdapterBase.name`."""

    @property
    def name(self) -> str:
        """Name in the engine, in seats and in messages, e.g. "player_0@7"."""
        return f"{self.adapter}@{self.version}"


@dataclass(slots=True, eq=False)
class HeldAdapter:
    """One version of one adapter, on disk and perhaps in the engine."""

    adapter: str
    """Name without version."""
    version: int
    """Optimizer steps behind the weights."""
    sha256: str
    """Digest of the weights."""
    config_sha256: str
    """Digest of the PEFT configuration."""
    folder: Path
    """Folder of its files."""
    number: int
    """Its id in the engine; never used twice."""
    base: str = ONLY_BASE
    """The base model whose engine holds it, see `AdapterBase.name`."""
    lora: AdapterHandle | None = None
    """The engine's handle; None while it is not loaded."""
    users: int = 0
    """Rollouts in flight that sample from it."""
    is_leaving: bool = False
    """Whether it is being dropped, or has been."""

    @property
    def name(self) -> str:
        """Name with version, as `Upload.name`."""
        return f"{self.adapter}@{self.version}"

    @property
    def receipt(self) -> dict[str, Any]:
        """The record with which the trainer verifies its push."""
        return {
            "version": self.version,
            "sha256": self.sha256,
            "config_sha256": self.config_sha256,
            "lora_name": self.name,
        }


def users_of(adapters: Iterable[HeldAdapter]) -> str:
    """Return the users of adapters, for messages: "player_0@7 by 2 rollout(s), …"."""
    return ", ".join(f"{adapter.name} by {adapter.users} rollout(s)" for adapter in adapters)


def adapter_home() -> Path:
    """Return the folder of servers' adapters: memory-backed storage if the machine has it."""
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir():
        return shared_memory
    return Path(tempfile.gettempdir())


class OwnedFolder:
    """A new folder that counts as in use while this process, or a child forked from it, is alive.

    Another server that finds the folder uses its lock to tell whether the owner is still alive. A
    process id would not work: servers in several containers may share one /dev/shm, and each sees
    only the ids of its own container. The kernel releases the lock when its holder ends, even after
    kill -9.
    """

    def __init__(self, home: Path, prefix: str = _PREFIX) -> None:
        """Remove folders left behind by killed processes, and create a new one.

        Args:
            home: Parent folder.
            prefix: Beginning of the folders' names; other folders are left alone.
        """
        for folder in sorted(home.glob(f"{prefix}*")):
            _remove_leftover(folder)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        unlocked = self.path / f"{LOCK}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(unlocked, flags, _OWNER_ONLY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock file is renamed only once it is locked: other servers leave a folder without a
        # lock file alone.
        unlocked.rename(self.path / LOCK)

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a subfolder, which appears under its name only once it is complete.

        Args:
            name: Name of the folder.
            files: File name to content.

        Returns:
            The folder.

        Raises:
            AdapterError: The files cannot be written; nothing is left behind. It is a NoRoomError
                if the problem may be temporary.
        """
        folder = self.path / name
        partial = self.path / f".{name}"
        try:
            partial.mkdir()
            for file, content in files.items():
                (partial / file).write_bytes(content)
            partial.rename(folder)
        except OSError as error:
            num_bytes = sum(len(content) for content in files.values())
            remedy = _ROOM.get(error.errno or 0)
            kind = NoRoomError if remedy else AdapterError
            raise kind(
                f"{name}: its {num_bytes} bytes cannot be stored in {self.path.parent} "
                f"({error.strerror or error}); adapters already served are not affected. "
                f"{remedy or 'Make that folder writable'} on the server's machine, then push again."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def close(self) -> None:
        """Remove the folder and release the lock; a second call has no effect."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor != _CLOSED:
            os.close(self._descriptor)
            self._descriptor = _CLOSED


def _remove_leftover(folder: Path) -> None:
    """Remove a folder whose owner is gone.

    A symbolic link, and a folder without a lock file or with a held lock, are left alone.
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
    """Moves adapters between uploads, disk and engine.

    Its callers, `AdapterStore` and `FrozenAdapters`, keep track of which adapters are held.
    """

    def __init__(
        self, bases: Sequence[AdapterBase], home: Path | None, *, max_rank: int, dtype: str
    ) -> None:
        """Create the folder for the files.

        Args:
            bases: The server's base models, at least one.
            home: Parent of the folder; None: `adapter_home`.
            max_rank: Largest rank of an upload.
            dtype: Number format in which the engines hold adapters.
        """
        self.folder = OwnedFolder(home or adapter_home())
        self.max_rank = max_rank
        self._bases = {base.name: base for base in bases}
        self.max_upload_bytes = max(max_adapter_bytes(base.shapes, max_rank) for base in bases)
        self._dtype = dtype
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        """Tasks that must run to their end even if the request that started them is gone."""

    async def check(self, upload: Upload, *, lora_rank: int) -> None:
        """Check an upload before anything is written.

        Args:
            upload: The upload.
            lora_rank: The required rank.

        Raises:
            AdapterError: The bytes do not match their digest, or must not be loaded, see
                `check_adapter`.
        """
        digest = await asyncio.to_thread(_sha256, upload.body)
        if digest != upload.sha256:
            raise AdapterError(
                f"{upload.name}: body has sha256 {digest[:16]}…, header says "
                f"{upload.sha256[:16]}…; resend it."
            )
        await asyncio.to_thread(self._check_against, upload, self._bases[upload.base], lora_rank)

    def _check_against(self, upload: Upload, base: AdapterBase, lora_rank: int) -> None:
        check_adapter(
            upload.body,
            upload.config,
            adapter=upload.name,
            lora_rank=lora_rank,
            shapes=base.shapes,
            dtype=self._dtype,
        )

    async def find_base(self, upload: Upload, *, lora_rank: int, fingerprint: str | None) -> str:
        """Return the name of the base model of a guest adapter.

        Args:
            upload: The upload.
            lora_rank: Its rank.
            fingerprint: Fingerprint of the base model; None: it is found by the tensors' shapes.

        Raises:
            AdapterError: The adapter fits none of this server's base models, or several.
        """
        bases = list(self._bases.values())
        if len(bases) == 1:
            return bases[0].name
        known = ", ".join(f"{base.name} ({base.fingerprint})" for base in bases)
        if fingerprint is not None:
            for base in bases:
                if base.fingerprint == fingerprint:
                    return base.name
            raise AdapterError(
                f"{upload.name}: this is an adapter of base model "
                f"{fingerprint[:_SHOWN_FINGERPRINT]}; this server has {known}. Start a server with "
                "that MODEL."
            )
        fitting = []
        problems = []
        for base in bases:
            try:
                await asyncio.to_thread(self._check_against, upload, base, lora_rank)
                fitting.append(base.name)
            except AdapterError as error:
                problems.append(f"{base.name}: {error}")
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise AdapterError(
                f"{upload.name}: its tensors fit each of {' and '.join(fitting)}; name the base "
                f"model's fingerprint in the header x-model-fingerprint, one of {known}."
            )
        raise AdapterError(
            f"{upload.name}: it fits none of this server's base models. {' '.join(problems)}"
        )

    async def write(self, upload: Upload) -> HeldAdapter:
        """Write a checked upload to disk, without loading it. Raises as `OwnedFolder.write`."""
        number = next(self._numbers)
        files = {
            _WEIGHTS: upload.body,
            _CONFIG: json.dumps(dict(upload.config)).encode(),
        }
        # The path contains the number: vLLM keys its prefix cache by name and path, and no path may
        # ever be used for two adapters.
        folder_name = f"{upload.name}-{number}"
        folder = await asyncio.to_thread(self.folder.write, folder_name, files)
        return HeldAdapter(
            adapter=upload.adapter,
            version=upload.version,
            sha256=upload.sha256,
            config_sha256=config_digest(upload.config),
            folder=folder,
            number=number,
            base=upload.base,
        )

    async def load(self, *adapters: HeldAdapter) -> None:
        """Load all of these into the engine, or none; their files stay.

        Raises:
            AdapterError: The files changed in the meantime. Other errors of the engine are passed
                through.
        """
        loaded: list[HeldAdapter] = []
        try:
            for adapter in adapters:
                adapter.lora = await self._engine_of(adapter).load_adapter(
                    adapter.name, adapter.number, str(adapter.folder)
                )
                loaded.append(adapter)
            # Concurrently, since every file is read and hashed.
            await asyncio.gather(*(asyncio.to_thread(_check_files, held) for held in loaded))
        except BaseException:
            for adapter in loaded:
                await self._unload(adapter)
            raise

    def _engine_of(self, adapter: HeldAdapter) -> Sampler:
        return self._bases[adapter.base].engine

    async def _unload(self, adapter: HeldAdapter) -> None:
        adapter.lora = None
        try:
            await self._engine_of(adapter).unload_adapter(adapter.number)
        except Exception as error:
            # No request will name it again, so it costs only its slot in the engine.
            logger.warning(
                "%s stays in the engine, unused: %s: %s",
                adapter.name,
                type(error).__name__,
                error,
            )

    async def drop(self, adapter: HeldAdapter, *, loaded: bool) -> None:
        """Unload an adapter that no request will name again, then remove its files.

        The order matters: the engine reloads adapters from their files when it has no room for all,
        and dies if the files are gone.

        Args:
            adapter: The adapter.
            loaded: Whether the engine holds it.
        """
        if loaded:
            await self._unload(adapter)
        await asyncio.to_thread(shutil.rmtree, adapter.folder, ignore_errors=True)

    async def to_the_end(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run work to its end even if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)
        return await asyncio.shield(task)

    def _finish_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The caller may be gone, and then the error would be lost.
            logger.warning("%s", task.exception())


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _check_files(adapter: HeldAdapter) -> None:
    weights = (adapter.folder / _WEIGHTS).read_bytes()
    config = json.loads((adapter.folder / _CONFIG).read_bytes())
    is_same = _sha256(weights) == adapter.sha256 and config_digest(config) == adapter.config_sha256
    if not is_same:
        raise AdapterError(
            f"{adapter.name}: the loaded files are not those that were sent; push again."
        )
