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


class AdapterFolders:
    """The folders of one server process."""

    def __init__(self, home: Path) -> None:
        """Create an empty place under `home`; that of servers which are gone is cleared first."""
        self._owned = OwnedFolder(home, PREFIX)
        self.root = self._owned.path

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write a folder; it appears under its name once every file in it is complete.

        Raises:
            AdapterError: The file system refused; nothing is left behind.
        """
        folder, partial = self.root / name, self.root / f".{name}"
        try:
            partial.mkdir()
            for file, content in files.items():
                (partial / file).write_bytes(content)
                size = (partial / file).stat().st_size
                if size != len(content):
                    raise OSError(f"{file} has {size} bytes on disk")
            partial.rename(folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            num_bytes = sum(map(len, files.values()))
            raise AdapterError(
                f"{name}: its {num_bytes} bytes cannot be kept in {self.root.parent} ({error.strerror or error}); what "
                "is served stays served. Free space there on the server's machine, then push again."
            ) from error
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return folder

    def remove(self, folder: Path) -> None:
        """Remove one folder; what cannot be removed goes with `close`."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove every folder."""
        self._owned.close()


class OwnedFolder:
    """A new folder that nobody takes for a leftover while this process, or a child forked from it, lives."""

    def __init__(self, home: Path, prefix: str) -> None:
        """Remove what killed processes left under `home` with this prefix, and make a folder of one's own there."""
        for folder in leftovers(home, prefix):
            remove_leftover(folder)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=home))
        unlocked = self.path / f"{LOCK}.new"
        self._descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Named once it is held: until then the folder has no lock, and such folders are left alone.
        unlocked.rename(self.path / LOCK)

    def close(self) -> None:
        """Remove the folder and give the lock back; a second time is harmless."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def leftovers(home: Path, prefix: str) -> list[Path]:
    """Return the folders whose owner is gone: their lock is there and free. Links are never followed."""
    found = []
    for folder in sorted(home.glob(f"{prefix}*")):
        with _held(folder) as is_ours:
            if is_ours:
                found.append(folder)
    return found


def remove_leftover(folder: Path) -> None:
    """Remove a folder whose owner is gone; nothing happens to one whose lock is held."""
    with _held(folder) as is_ours:
        if is_ours:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder; False: it has none, or somebody else holds it or owns the file."""
    if folder.is_symlink():
        yield False
        return
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
