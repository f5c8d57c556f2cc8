"""Log lines of this package: to the terminal, to the run folder, and to the other process."""

import io
import logging
import sys
from collections import deque
from pathlib import Path

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.files import open_plain_to_append
from hanabi_grpo.texts import visible


class KnownMessages(logging.Filter):
    """Drops records of other libraries that begin with a known text."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        """Store the beginnings of the records to drop."""
        super().__init__()
        self._beginnings = beginnings

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is shown."""
        return not record.getMessage().startswith(self._beginnings)


class VisibleFormatter(logging.Formatter):
    """Makes every character visible, because lines contain untrusted text and go to terminals."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return visible(super().format(record))


CLOCK = "%H:%M:%S"
"""Format of the time in front of a line."""
_FORMAT = VisibleFormatter("%(asctime)s %(message)s", datefmt=CLOCK)


class LineRing(logging.Handler):
    """Keeps the newest log lines, so that a trainer can copy them into its run folder.

    Lines are numbered from 0.
    """

    def __init__(self, size: int = 5000) -> None:
        """Keep at most `size` lines."""
        super().__init__()
        self._lines: deque[str] = deque(maxlen=size)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self._lines.append(self.format(record))
        self._count += 1

    def since(self, number: int) -> tuple[int, list[str]]:
        """Return (the number of the next new line, the kept lines from `number` on)."""
        oldest = self._count - len(self._lines)
        num_skipped = max(number - oldest, 0)
        lines = list(self._lines)
        return self._count, lines[num_skipped:]


def set_up_logging(*, file: Path | None = None, ring: LineRing | None = None) -> None:
    """Send this package's log lines to the terminal, and optionally to a file or a ring.

    The root logger is left to the libraries, several of which reconfigure it.

    Args:
        file: File to append lines to.
        ring: Keeps the newest lines in memory.

    Raises:
        RunFolderError: The file cannot be written.
    """
    logger = logging.getLogger("hanabi_grpo")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    if file is not None:
        handlers.append(logging.StreamHandler(_open_log(file)))
    if ring is not None:
        handlers.append(ring)
    for handler in handlers:
        handler.setFormatter(_FORMAT)
    logger.handlers[:] = handlers


def _open_log(path: Path) -> io.TextIOWrapper:
    """Open a log file for appending."""
    try:
        file = open_plain_to_append(path)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}); move it away, or choose another "
            "OUTPUT_DIR."
        ) from error
    return io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8", errors="backslashreplace")
