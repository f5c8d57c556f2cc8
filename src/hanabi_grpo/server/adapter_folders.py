"""Adapter versions on disk: written whole before anybody can see them, and removed with the server."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.server.owned_folders import OwnedFolder

PREFIX = "hanabi-adapters-"


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
