"""Whose code a worker runs, in memory that the worker shares with the server.

Messages are not used for this: what the socket cannot take waits in the worker's buffer, and the
worker sends none of it while an episode's code hangs.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from io import FileIO

_WORDS = "qq"
"""Format of the memory: the two words below."""
_EPISODE = 0
"""Index of the word with the number of the running episode, or `_NONE`."""
_CALLS = 1
"""Index of the word with the number of calls that have begun."""
_NONE = -1
"""Instead of an episode's number: no episode's code runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A call: code of one episode runs, and no other code of the worker meanwhile."""

    episode: int
    """Number of the episode in the worker."""
    call: int
    """Number of the call in the worker, from 1."""


class CurrentCall:
    """The call that a worker is in: written by the worker, read by the server."""

    def __init__(self, memory: FileIO) -> None:
        """Map the memory.

        Args:
            memory: A file made by `create_memory`, in this process or in another one. The caller
                closes it.
        """
        self._mapped = mmap.mmap(memory.fileno(), struct.calcsize(_WORDS))
        # Each word is written at once.
        self._words = memoryview(self._mapped).cast("q")

    def begin(self, episode: int) -> None:
        """Note that an episode's code starts running."""
        self._words[_CALLS] += 1
        self._words[_EPISODE] = episode

    def end(self) -> None:
        """Note that the code has returned."""
        self._words[_EPISODE] = _NONE

    def read(self) -> Running | None:
        """Return the call that the worker is in; None: no episode's code runs.

        The two words may belong to different calls if the worker goes on at this moment. So only a
        call that is read twice has been running from the one time to the other.
        """
        episode = self._words[_EPISODE]
        call = self._words[_CALLS]
        return None if episode == _NONE else Running(episode=episode, call=call)

    def close(self) -> None:
        """Unmap the memory; nothing can be read or written any more."""
        self._words.release()
        self._mapped.close()


def create_memory() -> FileIO:
    """Return a file in memory for the `CurrentCall` of a new worker.

    Raises:
        OSError: This process has too many open files.
    """
    memory = FileIO(os.memfd_create("current call"), "r+")
    memory.write(struct.pack(_WORDS, _NONE, 0))
    return memory
