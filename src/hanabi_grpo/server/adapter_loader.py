"""The way of one adapter: checked, written to disk, loaded into the engine; and back, files last.

Whatever touches all bytes of an adapter runs in a thread: hashing, checking, writing, reading,
removing.
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
"""Versions of one adapter of the session in the engine: the served one, and older ones that games
still use. One more than games of HANABI_OVERLAP can have, since a request may end a moment after
its last game."""

MAX_FROZEN = MAX_GUEST_ADAPTERS
"""Guest adapters on one server, see `frozen_adapters`."""

MAX_PROBES = 1
"""Adapters that are loaded to be scored once, see `AdapterStore.probing`."""

LOCK = ".lock"
"""File in an `OwnedFolder` whose lock says that its owner lives."""

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
"""What to do where the machine has run out of something, by the error's number."""
_CLOSED = -1
"""In place of a file descriptor that was closed."""
_SHOWN_FINGERPRINT = 16
"""Characters of a fingerprint in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterBase:
    """A base model of a server, and the engine that loads adapters over it."""

    name: str
    """As MODEL says it; `ONLY_BASE` where the server has no other."""
    engine: Sampler
    """Where its adapters are loaded."""
    shapes: Shapes
    """What an adapter of it covers."""
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
    """The base model that it is for, see `AdapterBase.name`."""

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
    """Where its files are."""
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
        """What the trainer checks its push against."""
        return {
            "version": self.version,
            "sha256": self.sha256,
            "config_sha256": self.config_sha256,
            "lora_name": self.name,
        }


def users_of(adapters: Iterable[HeldAdapter]) -> str:
    """Return who uses adapters, for messages: "player_0@7 by 2 rollout(s), …"."""
    return ", ".join(f"{adapter.name} by {adapter.users} rollout(s)" for adapter in adapters)


def adapter_home() -> Path:
    """Return where servers keep their adapters: memory-backed storage where the machine has it."""
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir():
        return shared_memory
    return Path(tempfile.gettempdir())


class OwnedFolder:
    """A new folder that counts as in use while this process, or a child forked from it, lives.

    Another server that finds the folder asks its lock whether the owner still lives. A process id
    would be the wrong question: servers in several containers may share one /dev/shm, and each
    sees only the ids of its own container. The lock belongs to the kernel and goes with its holder,
    kill -9 included.
    """

    def __init__(self, home: Path, prefix: str = _PREFIX) -> None:
        """Remove what killed processes left behind, and make a new folder.

        Args:
            home: Where the folders are.
            prefix: Beginning of the folders' names; others are left alone.
        """
        for folder in sorted(home.glob(f"{prefix}*")):
            _remove_leftover(folder)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        unlocked = self.path / f"{LOCK}.new"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(unlocked, flags, _OWNER_ONLY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock file gets its name once it is locked: a folder without a lock file is left
        # alone by others.
        unlocked.rename(self.path / LOCK)

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a folder inside, which appears under its name once it is complete.

        Args:
            name: Name of the folder.
            files: File name to content.

        Returns:
            The folder.

        Raises:
            AdapterError: The files cannot be written; nothing is left behind. A NoRoomError where
                that may be over soon.
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
                f"{name}: its {num_bytes} bytes cannot be kept in {self.path.parent} "
                f"({error.strerror or error}); what is served stays served. "
                f"{remedy or 'Make that folder writable'} on the server's machine, then push again."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def close(self) -> None:
        """Remove the folder and release the lock; a second call is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor != _CLOSED:
            os.close(self._descriptor)
            self._descriptor = _CLOSED


def _remove_leftover(folder: Path) -> None:
    """Remove a folder whose owner is gone.

    A folder without a lock file, a link, and one whose lock is held stay.
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
        """Make the folder for the files.

        Args:
            bases: The server's base models, at least one.
            home: Where the folder is made; None: `adapter_home`.
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
        """What must run to its end even when the request that began it is gone."""

    async def check(self, upload: Upload, *, lora_rank: int) -> None:
        """Check an upload before anything is written.

        Args:
            upload: The upload.
            lora_rank: The rank that it must have.

        Raises:
            AdapterError: The bytes are not those that were sent, or must not be loaded, see
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
        """Return the name of the base model that a guest's adapter is for.

        Args:
            upload: The upload.
            lora_rank: Its rank.
            fingerprint: Of the base model, where the client names it; None: its shapes decide.

        Raises:
            AdapterError: It fits none of this server's base models, or several.
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
                f"{upload.name}: it is of base model {fingerprint[:_SHOWN_FINGERPRINT]}; this "
                f"server has {known}. Start a server with that MODEL for it."
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
                f"{upload.name}: its tensors fit {' and '.join(fitting)} alike; name the base "
                f"model's fingerprint in the header x-model-fingerprint, one of {known}."
            )
        raise AdapterError(
            f"{upload.name}: it fits none of this server's base models. {' '.join(problems)}"
        )

    async def write(self, upload: Upload) -> HeldAdapter:
        """Write a checked upload to disk; nothing is loaded yet. Raises as `OwnedFolder.write`."""
        number = next(self._numbers)
        files = {
            _WEIGHTS: upload.body,
            _CONFIG: json.dumps(dict(upload.config)).encode(),
        }
        # The path holds the number: vLLM keys its prefix cache by name and path, and no path may
        # ever stand for two adapters.
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
        """Load every one of these into the engine, or none; their files stay.

        Raises:
            AdapterError: The files changed on the way. Whatever else the engine raises comes
                through.
        """
        loaded: list[HeldAdapter] = []
        try:
            for adapter in adapters:
                adapter.lora = await self._engine_of(adapter).load_adapter(
                    adapter.name, adapter.number, str(adapter.folder)
                )
                loaded.append(adapter)
            # Beside each other: every file is read and hashed.
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
            # No request names it again, so all that it costs is its slot in the engine.
            logger.warning(
                "%s stays in the engine, unused: %s: %s",
                adapter.name,
                type(error).__name__,
                error,
            )

    async def drop(self, adapter: HeldAdapter, *, loaded: bool) -> None:
        """Make the engine forget an adapter that no request will name again, then remove its files.

        The engine reloads adapters from their files when it has no room for all, and dies when the
        files are gone; hence the order.

        Args:
            adapter: The adapter.
            loaded: Whether the engine holds it.
        """
        if loaded:
            await self._unload(adapter)
        await asyncio.to_thread(shutil.rmtree, adapter.folder, ignore_errors=True)

    async def to_the_end(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do work that a cancelled caller must not leave half done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish_task)
        return await asyncio.shield(task)

    def _finish_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The caller may have gone; then nobody else would ever see the error.
            logger.warning("%s", task.exception())


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _check_files(adapter: HeldAdapter) -> None:
    weights = (adapter.folder / _WEIGHTS).read_bytes()
    config = json.loads((adapter.folder / _CONFIG).read_bytes())
    is_same = _sha256(weights) == adapter.sha256 and config_digest(config) == adapter.config_sha256
    if not is_same:
        raise AdapterError(
            f"{adapter.name}: the files that were loaded are not those that were sent; push again."
        )
