"""Files: reading files of unknown origin safely, and writing files completely or not at all.

The files of a run folder may come from another user, another machine or a download. A FIFO instead
of a file would block its reader forever, and a device or a huge file would fill the memory. So all
code that reads a run folder uses `read_bytes`, which reads only plain files and applies the size
limit of the kind of file.
"""

import errno
import io
import os
import secrets
import stat
from pathlib import Path

MAX_METRICS_BYTES = 512 << 20
"""Limit of `metrics.jsonl`, whose rows have a few kilobytes: more than 100,000 steps."""
MAX_INCIDENTS_BYTES = 64 << 20
"""Limit of `incidents.jsonl`."""
MAX_GAMES_BYTES = 2 << 30
"""Limit of one file of recorded games, which hold every token id with its log-probability."""
MAX_DATASET_BYTES = 1 << 30
"""Limit of a DATASET."""
MAX_PIECES_BYTES = 1 << 30
"""Limit of the finished pieces of an interrupted command."""
MAX_EVALUATION_BYTES = 64 << 20
"""Limit of one file of evaluations, which have three numbers per task."""
MAX_DOCUMENT_BYTES = 16 << 20
"""Limit of any other JSON document, e.g. `settings.json`, `manifest.json` or `validation.json`."""
MAX_LOG_BYTES = 256 << 20
"""Limit of a log that is searched for a message."""
MAX_WEIGHTS_BYTES = 16 << 30
"""Limit of one adapter's weights, several times what a server accepts."""
MAX_LINE_BYTES = 4096
"""Limit of a file with one line, e.g. `.run-id`."""

_CHUNK = 1 << 20
"""Bytes that are read at once, so that a file's claimed size alone takes no memory."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
"""Names of files that are not plain, for errors."""


def read_bytes(path: Path, limit: int, *, start: int = 0) -> bytes:
    """Return the content of a plain file; links are followed.

    Args:
        path: The file.
        limit: Maximum size of the file in bytes.
        start: Bytes at its beginning to skip.

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
    """Return the content of a plain UTF-8 file; see `read_bytes`.

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
    """Open a plain file for reading and appending, unbuffered; it is created if it is missing.

    Raises:
        OSError: It cannot be opened, or is not a plain file.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    return io.FileIO(_open_descriptor(path, flags), "a+")


def write_text_atomic(path: Path, text: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically: readers see the old or the complete new file, even after a crash.

    Args:
        path: The file.
        text: Content of the file; text is encoded as UTF-8.
        mode: Permissions of the file, before the umask is applied.
    """
    content = text if isinstance(text, bytes) else text.encode()
    # Not with mkstemp, whose files only their owner can read.
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
        OSError: A file cannot be read, or is not a plain file.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open_plain(Path(parent, name)) as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def _open_descriptor(path: Path, flags: int) -> int:
    # O_NONBLOCK keeps a FIFO from blocking the call, and has no effect on a plain file. The opened
    # file is checked, not the path, which may be replaced in between.
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            # A socket, or a FIFO without a reader.
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
    return OSError(errno.EFBIG, f"longer than {limit} bytes, the limit for such a file", str(path))
