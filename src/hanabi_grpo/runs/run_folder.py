"""The run folder: its name, its lock, its identity, and atomic writes into it."""

import errno
import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, SettingsError
from hanabi_grpo.files import (
    MAX_LINE_BYTES,
    open_plain,
    open_plain_to_append,
    read_text,
    sync_folder,
    sync_tree,
    write_text_atomic,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.saved import (
    RESUME_COMMAND,
    SETTINGS_FILE,
    VALUES,
    read_settings_document,
)
from hanabi_grpo.texts import visible_line

LOCK = ".lock"
"""File that is locked by the process that trains in the folder."""
TRAIN = "train"
"""Folder in which `tools/demo.sh` keeps the run, next to evaluations."""
EVALUATIONS = "evaluations"
"""Folder in a run folder where `evaluate` stores the scores of the run's adapters."""
PLAYED = "played"
"""Folder of games that people played."""
CROSS_PLAY = "cross-play-"
"""Prefix of the name of a folder of cross-play results."""
ADHOC = "adhoc-"
"""Prefix of the name of a folder of an ad-hoc evaluation."""
RUN_ID = ".run-id"
"""File with the unique number of the run."""
SECRET = ".run-secret"
"""File with the secret that proves to a rollout server that a trainer works in the folder."""
OUTPUTS = Path("outputs")
"""Folder of runs without OUTPUT_DIR."""
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)
_PUBLIC_DIGITS = 12
_ID_DIGITS = 12
_SECRET_BYTES = 32
_HOLDER_LENGTH = 200
"""Maximum bytes to read from a lock file."""
_LOCK_TRIES = 5
_LOCK_PAUSE_SECONDS = 0.05
"""Pause between two attempts to lock a run folder."""
_SHOWN_NAMES = 3
"""Names of a list that a message shows."""
_DEPTHS = ("*", "*/*", "*/*/*")
"""Depths below `outputs/` at which runs are searched."""


# The folder of a run


def results_folder(settings: Settings) -> Path:
    """Return the folder for results of commands without their own run.

    It is OUTPUT_DIR, or `outputs/` if that is not set.
    """
    return settings.output_dir or OUTPUTS


def plain_name(text: str) -> str:
    """Return a text as the name of a file or an artifact; other characters become dashes."""
    return _NOT_IN_A_NAME.sub("-", text)


def run_folder_name(settings: Settings, now: datetime) -> str:
    """Return the name of a run without OUTPUT_DIR, e.g. "laptop-20260131-093000"."""
    played = settings.board or Path(settings.dataset or "run").stem
    return f"{played}-{now:%Y%m%d-%H%M%S}"


def prepare_run_folder(settings: Settings, now: datetime | None = None) -> Path:
    """Create the run folder and return it.

    A folder that holds only `*.log` files, a lock, leftover temporary files, and results of
    evaluations or games counts as fresh: a script that starts both processes writes the server's
    log there before training begins, and `evaluate base` may run before the first step. Without
    OUTPUT_DIR it is a new folder in `outputs/`.

    Args:
        settings: The run's settings.
        now: Time in the name of a new folder; None: the current time.

    Raises:
        RunFolderError: The folder is in use, is a file, or cannot be created.
    """
    folder = settings.output_dir
    if folder is None:
        folder = OUTPUTS / run_folder_name(settings, now or datetime.now())
    make_run_folder(folder)
    check_fresh(folder)
    return folder


def check_fresh(folder: Path) -> None:
    """Refuse a folder that is not fresh, see `prepare_run_folder`.

    Raises:
        RunFolderError: The folder is not fresh, or cannot be read.
    """
    given = f"OUTPUT_DIR={str(folder)!r}"
    try:
        used = used_entries(folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    if not used:
        return
    holder = holder_of(folder)
    if holder:
        raise RunFolderError(
            f"{given}: a trainer works in it ({holder}). To watch it: hanabi-grpo watch {folder}. "
            "For a second run choose another OUTPUT_DIR, or unset it for a new folder in "
            "outputs/."
        )
    # Hidden files are the least informative, so they come last.
    used.sort(key=lambda name: name.startswith("."))
    raise RunFolderError(
        f"{given}: already holds another run ({some_of(used)}). Choose another OUTPUT_DIR, unset "
        "it for a new folder in outputs/, or continue that run: RESUME=latest"
    )


def make_run_folder(folder: Path, *, option: str = "") -> None:
    """Create a folder unless it exists.

    Args:
        folder: The folder.
        option: Option that names the folder, for the error message, e.g. "--out"; "": OUTPUT_DIR
            names it.

    Raises:
        RunFolderError: The path is a file, or the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error, option) from error


def _unusable(folder: Path, error: OSError, option: str = "") -> RunFolderError:
    """Return the error for a folder that cannot be used; see `make_run_folder`."""
    given = f"{option} {folder}" if option else f"OUTPUT_DIR={str(folder)!r}"
    if folder.is_file():
        return RunFolderError(f"{given}: is a file; choose a folder that does not exist yet.")
    another = "" if option else ", or unset OUTPUT_DIR for a new one in outputs/"
    return RunFolderError(
        f"{given}: cannot be used ({error.strerror}); choose a folder that can be created{another}."
    )


def used_entries(folder: Path) -> list[str]:
    """Return the names of the entries that make a folder not fresh, ascending."""
    names = []
    for entry in folder.iterdir():
        is_log = entry.suffix == ".log"
        is_temporary = entry.name.startswith(".") and entry.suffix == ".tmp"
        is_result = entry.name in (EVALUATIONS, PLAYED) or entry.name.startswith(
            (CROSS_PLAY, ADHOC)
        )
        if not is_log and not is_temporary and not is_result and entry.name != LOCK:
            names.append(entry.name)
    return sorted(names)


def some_of(names: Sequence[str]) -> str:
    """Return the first names of a list for a message."""
    shown = ", ".join(names[:_SHOWN_NAMES])
    return f"{shown}, …" if len(names) > _SHOWN_NAMES else shown


def leave_run_folder(folder: Path) -> None:
    """Remove a folder that holds only this process's lock.

    This is for a run that ends before it writes a file.
    """
    names = [entry.name for entry in folder.iterdir()]
    if names == [LOCK]:
        (folder / LOCK).unlink()
        folder.rmdir()


def run_home(folder: Path) -> Path:
    """Return the run folder that belongs to a folder.

    It is the folder itself, or its `train/`, where `tools/demo.sh` keeps the run.
    """
    inner = folder / TRAIN
    if _is_of_a_run(inner) and not _is_of_a_run(folder):
        return inner
    return folder


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder that contains a checkpoint's folder; None if there is none."""
    parent = checkpoint.resolve().parent
    return parent if (parent / SETTINGS_FILE).is_file() else None


def _is_of_a_run(folder: Path) -> bool:
    for name in (SETTINGS_FILE, "metrics.jsonl", "episodes"):
        if (folder / name).exists():
            return True
    return any(folder.glob("checkpoint-*"))


# The process that works in it


def holder_of(folder: Path) -> str:
    """Return the name of another process that holds a run folder.

    Returns:
        The name that the process wrote, e.g. "pid 12 on gpu7"; "" if no other process holds it.
    """
    try:
        with open_plain(folder / LOCK) as file:
            holder = _read_holder(file)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "" if holder == _this_process() else holder
    except OSError:
        pass  # there is no lock file, or it cannot be locked
    return ""


def open_locked(path: Path) -> io.FileIO:
    """Open a file, created if it is missing, and lock it until it is closed.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    while True:
        file = open_plain_to_append(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        # Between the two calls above, its holder may have removed the file, and the empty folder
        # too.
        locked_stat = os.fstat(file.fileno())
        if path.exists() and os.path.samestat(locked_stat, path.stat()):
            return file
        file.close()


def lock_run_folder(folder: Path, *, option: str = "") -> io.FileIO:
    """Lock a run folder for this process, and for the one that replaces it through exec.

    Close the file to release the lock. The kernel releases it when the last process that inherited
    the file ends, even by kill -9.

    Args:
        folder: The folder.
        option: Option that names it, see `make_run_folder`.

    Raises:
        RunFolderError: Another process holds it, or the file system has no locks.
    """
    path = folder / LOCK
    user = "process" if option else "trainer"
    name = option or "OUTPUT_DIR"
    try:
        file = _open_free(path)
    except BlockingIOError as error:
        with open_plain(path) as locked:
            holder = _read_holder(locked)
        raise RunFolderError(
            f"{folder}: another {user} is using it ({holder}). Stop it, or choose another {name}."
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be locked ({error.strerror}); make {folder} writable, or choose "
            f"another {name}, on a file system with locks."
        ) from error
    file.truncate(0)
    file.write(f"{_this_process()}\n".encode())
    os.set_inheritable(file.fileno(), True)
    return file


def _open_free(path: Path) -> io.FileIO:
    """Do what `open_locked` does, but tolerate a process that checks who holds the lock.

    `holder_of` shares the lock for a moment.
    """
    for _ in range(_LOCK_TRIES - 1):
        with suppress(BlockingIOError):
            return open_locked(path)
        time.sleep(_LOCK_PAUSE_SECONDS)
    return open_locked(path)


def _read_holder(lock: io.FileIO) -> str:
    text = lock.read(_HOLDER_LENGTH).decode("utf-8", "replace")
    return text.strip() or "its process is not known yet"


def _this_process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


# Its identity for a rollout server


def run_identity(folder: Path) -> str:
    """Return the run's name for a rollout server: its folder and its unique number.

    The number stays in the folder, so a resumed run is recognized, and a run with the same path on
    another machine is not mistaken for it.
    """
    path = folder / RUN_ID
    if not path.exists():
        write_json_atomic(path, uuid.uuid4().hex[:_ID_DIGITS])
    number = read_text(path, MAX_LINE_BYTES).strip().strip('"')
    # The server shows the name on its terminal, and refuses one with control characters.
    return visible_line(f"{folder.resolve()} ({number})")


def run_secret(folder: Path) -> str:
    """Return the secret that proves to a rollout server that a trainer works in this folder.

    Only the user can read the file. It is kept, so a resumed run takes over its session at once.

    Raises:
        RunFolderError: The file does not hold a secret.
    """
    path = folder / SECRET
    if not path.exists():
        write_text_atomic(path, f"{secrets.token_hex(_SECRET_BYTES)}\n", mode=0o600)
    secret = read_text(path, MAX_LINE_BYTES).strip()
    digits = 2 * _SECRET_BYTES
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", secret):
        raise RunFolderError(
            f"{path}: not {digits} hexadecimal digits; remove it, and the next start creates one."
        )
    return secret


def public_run(run_id: str) -> str:
    """Return the public digest of the run that a server works for.

    It is enough to recognize a run, and reveals no path.
    """
    return hashlib.sha256(run_id.encode()).hexdigest()[:_PUBLIC_DIGITS]


def is_run(folder: Path, run: str) -> bool:
    """Tell whether the run of a server's session, see `public_run`, is the one in this folder."""
    return (folder / RUN_ID).is_file() and public_run(run_identity(folder)) == run


def find_run(run: str | None, around: Path = OUTPUTS) -> Path | None:
    """Return the folder of the run of a server's session; None if there is none.

    Args:
        run: Digest that the server reports, see `public_run`; None: the server has no session.
        around: The folder below which runs are searched.
    """
    if run is None:
        return None
    try:
        for depth in _DEPTHS:
            for path in around.glob(f"{depth}/{RUN_ID}"):
                if is_run(path.parent, run):
                    return path.parent.resolve()
    except OSError:
        pass  # a folder that this user cannot read
    return None


# Its recorded settings


def resume_command_of(run_folder: Path) -> str:
    """Return the command that resumes a run, from `settings.json`; "" without one."""
    return str(_settings_document(run_folder).get(RESUME_COMMAND, ""))


def recorded_settings(run_folder: Path) -> dict[str, Any]:
    """Return a run's settings by variable, from `settings.json`.

    The result is empty if the file cannot be read.
    """
    values = _settings_document(run_folder).get(VALUES)
    return values if isinstance(values, dict) else {}


def _settings_document(run_folder: Path) -> dict[str, Any]:
    try:
        return read_settings_document(run_folder / SETTINGS_FILE)
    except (OSError, ValueError):
        return {}


# Writing files


@contextmanager
def writing(describe: Callable[[OSError], str]) -> Iterator[None]:
    """Turn an OSError about writing into a RunFolderError.

    Args:
        describe: Returns the message: what cannot be written, why, and what to do.
    """
    try:
        yield
    except HanabiGrpoError:
        # A RunFolderError is an OSError as well.
        raise
    except OSError as error:
        raise RunFolderError(describe(error)) from error


def write_json_atomic(path: Path, data: Any) -> None:
    """Write data as JSON by `write_text_atomic`."""
    write_text_atomic(path, json_text(data, indent=2))


def json_text(data: Any, indent: int | None = None) -> str:
    """Return data as JSON, with a line break.

    Non-finite numbers become null: JSON cannot represent them.
    """
    text = json.dumps(finite(data), indent=indent, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def finite(data: Any) -> Any:
    """Return data that JSON can represent: non-finite numbers become None, tuples lists."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data


def save_text(path: Path, text: str | bytes, option: str = "") -> None:
    """Write a file that the user named, atomically, and create its folder.

    Args:
        path: The file.
        text: Content of the file.
        option: Option that names the file, for the error message, e.g. "--out".

    Raises:
        SettingsError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, text)
    except OSError as error:
        given = f"{option} {path}".lstrip()
        raise SettingsError(
            f"{given}: cannot be written ({error.strerror}); choose another place."
        ) from error


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `target` at the end.

    After an error `target` is unchanged.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        yield new
        sync_tree(new)
        old = Path(scratch) / "old"
        if target.exists():
            os.replace(target, old)
        try:
            os.replace(new, target)
        except BaseException:
            if old.exists():
                os.replace(old, target)
            raise
        sync_folder(target.parent)


def append_jsonl(path: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to a JSON Lines file by one write each; non-finite numbers become null."""
    with open_plain_to_append(path) as file:
        for row in rows:
            line = json_text(row).encode()
            start = file.seek(0, os.SEEK_END)
            if file.write(line) != len(line):
                # On a full disk, part of the line may be written; nothing may be appended to it.
                file.truncate(start)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
