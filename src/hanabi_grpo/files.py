"""Files: reading those that somebody else may have made, and writing them whole or not at all.

The files of a run folder may come from another user, another machine or a download. A FIFO in
their place would block its reader for ever, and a device or a huge file would fill the memory. So
whatever reads a run folder reads through `read_bytes`, plain files only, with the limit of the
file's kind.
"""

import errno
import io
import os
import secrets
import stat
from pathlib import Path

MAX_METRICS_BYTES = 512 << 20
"""Of `metrics.jsonl`, whose rows have some kilobytes: more than 100,000 steps."""
MAX_INCIDENTS_BYTES = 64 << 20
"""Of `incidents.jsonl`."""
MAX_GAMES_BYTES = 2 << 30
"""Of one file of recorded games, which hold every token id with its log-probability."""
MAX_DATASET_BYTES = 1 << 30
"""Of a DATASET."""
MAX_PIECES_BYTES = 1 << 30
"""Of the finished pieces of an interrupted command."""
MAX_EVALUATION_BYTES = 64 << 20
"""Of one file of evaluations, which have three numbers a task."""
MAX_DOCUMENT_BYTES = 16 << 20
"""Of any other JSON document, e.g. `settings.json`, `manifest.json` or `validation.json`."""
MAX_LOG_BYTES = 256 << 20
"""Of a log that is searched for a message."""
MAX_WEIGHTS_BYTES = 16 << 30
"""Of one adapter's weights, a multiple of what a server accepts."""
MAX_LINE_BYTES = 4096
"""Of a file with one line, e.g. `.run-id`."""

_CHUNK = 1 << 20
"""Bytes that are read at once, so that an announced size alone takes no memory."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
"""What a file that is not plain is called in errors."""


def read_bytes(path: Path, limit: int, *, start: int = 0) -> bytes:
    """Return the content of a plain file; links are followed.

    Args:
        path: The file.
        limit: Bytes that it may have.
        start: Bytes at its beginning that are left out.

    Raises:
        OSError: It cannot be read, is not a plain file, or is longer than the limit.
    """
    chunks = []
    num_bytes = start
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise _too_long(path, limit)
        file.seek(start)
        # The file may grow while it is read.
        while chunk := file.read(_CHUNK):
            num_bytes += len(chunk)
            if num_bytes > limit:
                raise _too_long(path, limit)
            chunks.append(chunk)
    return b"".join(chunks)


def read_text(path: Path, limit: int) -> str:
    """Return the content of a plain file of UTF-8; see `read_bytes`.

    Raises:
        OSError: As `read_bytes`.
        UnicodeDecodeError: It is not UTF-8.
    """
    return read_bytes(path, limit).decode("utf-8")


def open_plain(path: Path) -> io.FileIO:
    """Open a plain file for reading, unbuffered; links are followed.

    Raises:
        OSError: It cannot be opened, or is not a plain file.
    """
    return io.FileIO(_open_descriptor(path, os.O_RDONLY), "r")


def open_plain_to_append(path: Path) -> io.FileIO:
    """Open a plain file for reading and appending, unbuffered; it is made where it is missing.

    Raises:
        OSError: It cannot be opened, or is not a plain file.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    return io.FileIO(_open_descriptor(path, flags), "a+")


def write_text_atomic(path: Path, text: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically: readers, also after a crash, see the old or the whole new file.

    Args:
        path: The file.
        text: Content of the file; text is encoded as UTF-8.
        mode: Permissions of the file, before the umask is applied.
    """
    content = text if isinstance(text, bytes) else text.encode()
    # Not by mkstemp, whose files only their owner can read.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk: names that were added, renamed or removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Return once every file below a folder, and every name in it, is on disk.

    Raises:
        OSError: A file cannot be read, or is not a plain one.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open_plain(Path(parent, name)) as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def _open_descriptor(path: Path, flags: int) -> int:
    # O_NONBLOCK keeps a FIFO from blocking the call, and is without effect on a plain file. What
    # was opened is looked at, not the path, which may be exchanged in between.
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # A socket, or a FIFO that nobody reads.
            raise _not_plain(path, "a FIFO or a socket") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_plain(path, _KINDS.get(stat.S_IFMT(mode), "something else"))


def _not_plain(path: Path, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"not a plain file but {kind}", str(path))


def _too_long(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"longer than {limit} bytes, the limit of such a file", str(path))
