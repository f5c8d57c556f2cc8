"""Folders of a server on disk: adapter versions, written whole before anybody can see them, and vLLM's sockets.

Each belongs to a process, and whoever finds one asks its lock whether the owner still lives. A process number would be
the wrong question: servers in several containers may share one /dev/shm, and each sees the numbers of its own processes
only. A lock is the kernel's and goes with its holder, kill -9 included.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from hanabi_grpo.errors import AdapterError

PREFIX = "hanabi-adapters-"
LOCK = ".lock"


def adapter_home() -> Path:
    """Return where servers keep their adapters: memory-backed storage where the machine has it."""
    home = Path("/dev/shm")
    return home if home.is_dir() else Path(tempfile.gettempdir())


class OwnedFolder:
    """A new folder that nobody takes for a leftover while this process, or a child forked from it, lives."""

    def __init__(self, home: Path, prefix: str = PREFIX) -> None:
        """Remove what killed processes left under `home` with this prefix, and make a folder of one's own there."""
        for folder in sorted(home.glob(f"{prefix}*")):
            with _held(folder) as is_ours:
                if is_ours:
                    shutil.rmtree(folder, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        unlocked = self.path / f"{LOCK}.new"
        self._descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Named once it is held: until then the folder has no lock, and such folders are left alone.
        unlocked.rename(self.path / LOCK)

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a folder inside; it appears under its name once every file in it is complete.

        Raises:
            AdapterError: The file system refused; nothing is left behind.
        """
        folder, partial = self.path / name, self.path / f".{name}"
        try:
            partial.mkdir()
            for file, content in files.items():
                (partial / file).write_bytes(content)
                size = (partial / file).stat().st_size
                if size != len(content):
                    raise OSError(f"{file} has {size} bytes on disk")
            partial.rename(folder)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            num_bytes = sum(map(len, files.values()))
            raise AdapterError(
                f"{name}: its {num_bytes} bytes cannot be kept in {self.path.parent} ({error.strerror or error}); what "
                "is served stays served. Free space there on the server's machine, then push again."
            ) from error
        return folder

    def close(self) -> None:
        """Remove the folder and give the lock back; a second time is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder whose owner is gone; False: no lock, a link, or somebody holds or owns it."""
    try:
        if folder.is_symlink():
            raise OSError("a link is never followed")
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except OSError:
        is_ours = False
    try:
        yield is_ours
    finally:
        os.close(descriptor)
