"""The run folder: its name, that it is fresh, who holds it, and how files are written into it."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.settings import Settings

LOCK = ".lock"
TRAIN = "train"
RESUME_COMMAND = "resume_command"
"""Key of `settings.json`: what to type to go on with the run."""
EVALUATIONS = "evaluations"
"""Folder in a run folder where `evaluate` leaves what the run's adapters scored."""
RUN_ID = ".run-id"
SECRET = ".run-secret"


def run_folder_name(settings: Settings, now: datetime) -> str:
    """Return the name of a run that was given no OUTPUT_DIR, e.g. "laptop-20260131-093000"."""
    return f"{settings.preset or Path(settings.dataset or 'run').stem}-{now:%Y%m%d-%H%M%S}"


def prepare_run_folder(settings: Settings, now: datetime | None = None) -> Path:
    """Create the run folder and return it.

    A folder that holds nothing but `*.log` files, a lock and rests of temporary files counts as
    fresh: a script that starts both processes points the server's log there before training begins.
    Without OUTPUT_DIR it is a new folder in `outputs/`, named after `now`. A folder that is in use,
    is a file, or cannot be created is a RunFolderError."""
    folder = settings.output_dir or Path("outputs") / run_folder_name(
        settings, now or datetime.now()
    )
    make_run_folder(folder)
    check_fresh(folder)
    return folder


def check_fresh(folder: Path) -> None:
    """Refuse a folder that is not fresh, see `prepare_run_folder`, or cannot be read, by a
    RunFolderError.
    """
    said = f"OUTPUT_DIR={str(folder)!r}"
    try:
        used = used_entries(folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    if used and (holder := holder_of(folder)):
        raise RunFolderError(
            f"{said}: a trainer works in it ({holder}). Look at it: hanabi-grpo watch {folder}. "
            "For a run beside it "
            "choose another OUTPUT_DIR, or unset it for a new folder in outputs/."
        )
    if used:
        raise RunFolderError(
            f"{said}: holds another run already ({some_of(used)}). Choose another OUTPUT_DIR, "
            "unset it for a new "
            "folder in outputs/, or go on with that run: RESUME=latest"
        )


def make_run_folder(folder: Path) -> None:
    """Create a folder unless it exists; a RunFolderError where it is a file, or cannot be
    created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> RunFolderError:
    is_file = "is a file; choose a folder that does not exist yet"
    reason = is_file if folder.is_file() else f"cannot be used ({error.strerror})"
    return RunFolderError(f"OUTPUT_DIR={str(folder)!r}: {reason}.")


def used_entries(folder: Path) -> list[str]:
    """Return the names in a folder that make it a used one, ascending."""
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.suffix != ".log"
        and entry.name != LOCK
        and not (entry.name[0] == "." and entry.suffix == ".tmp")
    )


def some_of(names: Sequence[str]) -> str:
    """Return the first names of a list for a message."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def holder_of(folder: Path) -> str:
    """Return what another process that holds a run folder says of itself, e.g. "pid 12 on gpu7"; ""
    for nobody.
    """
    try:
        with (folder / LOCK).open(encoding="utf-8", errors="replace") as file:
            holder = _said(file)
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "" if holder == _me() else holder
    except OSError:
        pass  # no lock there, or none that can be asked
    return ""


def _said(lock: IO[str]) -> str:
    return lock.read(200).strip() or "which has not said its name yet"


def _me() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def open_locked(path: Path) -> IO[str]:
    """Open a file, made where it is missing, for this process until it is closed; or raise a
    BlockingIOError.
    """
    while True:
        file = path.open("a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        # Its holder may have removed the file, and an empty folder with it, between the two calls
        # above.
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()


def lock_run_folder(folder: Path) -> IO[str]:
    """Take a run folder for this process, and for the one that it becomes by exec; close the file
    to give it back.

    The kernel gives it back when the last process that inherited the file ends, kill -9 included. A
    RunFolderError where another trainer holds it, or the file system has no locks."""
    path = folder / LOCK
    try:
        file = open_locked(path)
    except BlockingIOError as error:
        with path.open(encoding="utf-8", errors="replace") as held:
            text = (
                f"{folder}: another trainer works in it ({_said(held)}). Stop it, or choose "
                "another OUTPUT_DIR."
            )
        raise RunFolderError(text) from error
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be locked ({error.strerror}); make {folder} writable, or choose an "
            "OUTPUT_DIR on a file "
            "system with locks."
        ) from error
    file.truncate(0)
    file.write(f"{_me()}\n")
    file.flush()
    os.set_inheritable(file.fileno(), True)
    return file


def resume_command_of(run_folder: Path) -> str:
    """Return the command that goes on with a run, as `settings.json` has it."""
    return str(_settings_file(run_folder).get(RESUME_COMMAND, ""))


def run_home(folder: Path) -> Path:
    """Return the run folder that a folder stands for: itself, or its `train/`, as `tools/demo.sh`
    keeps the run.
    """
    inner = folder / TRAIN
    return inner if _is_of_a_run(inner) and not _is_of_a_run(folder) else folder


def run_of(checkpoint: Path) -> Path | None:
    """Return the folder of the run that a checkpoint's folder lies in; None where it lies in
    none.
    """
    parent = checkpoint.resolve().parent
    return parent if (parent / "settings.json").is_file() else None


def _is_of_a_run(folder: Path) -> bool:
    return any(
        (folder / name).exists() for name in ("settings.json", "metrics.jsonl", "episodes")
    ) or any(folder.glob("checkpoint-*"))


def run_identity(folder: Path) -> str:
    """Return the run's name towards a rollout server: its folder, and a number that no other run
    has.

    The number stays in the folder: a resumed run is recognised, and one of the same path on another
    machine is not."""
    path = folder / RUN_ID
    if not path.exists():
        write_json_atomic(path, uuid.uuid4().hex[:12])
    number = path.read_text(encoding="utf-8").strip().strip('"')
    return f"{folder.resolve()} ({number})"


def run_secret(folder: Path) -> str:
    """Return what proves to a rollout server that a trainer works in this folder; readable by its
    user alone.

    It stays, so that a resumed run takes over its session at once. A RunFolderError where the file
    holds another thing."""
    path = folder / SECRET
    if not path.exists():
        write_text_atomic(path, f"{secrets.token_hex(32)}\n", mode=0o600)
    secret = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch("[0-9a-f]{64}", secret):
        raise RunFolderError(
            f"{path}: not 64 hexadecimal digits; remove it, and the next start makes another."
        )
    return secret


def public_run(run_id: str) -> str:
    """Return what a server tells everybody of the run that it works for: enough to recognise one's
    own.
    """
    return hashlib.sha256(run_id.encode()).hexdigest()[:12]


def is_run(folder: Path, run: str) -> bool:
    """Tell whether the run of a server's session, see `public_run`, is the one in this folder."""
    return (folder / RUN_ID).is_file() and public_run(run_identity(folder)) == run


def find_run(run: str | None, around: Path = Path("outputs")) -> Path | None:
    """Return the folder below `around` of the run of a server's session; None where there is
    none.
    """
    if run is not None:
        with suppress(OSError):
            folders = [
                path.parent
                for depth in ("*", "*/*", "*/*/*")
                for path in around.glob(f"{depth}/{RUN_ID}")
            ]
            return next((folder.resolve() for folder in folders if is_run(folder, run)), None)
    return None


def leave_run_folder(folder: Path) -> None:
    """Remove a folder that holds nothing but this process's lock; for a run that ends before it
    began.
    """
    if [entry.name for entry in folder.iterdir()] == [LOCK]:
        (folder / LOCK).unlink()
        folder.rmdir()


def write_json_atomic(path: Path, data: Any) -> None:
    """Do what `write_text_atomic` does with JSON."""
    write_text_atomic(path, json_text(data, indent=2))


def json_text(data: Any, indent: int | None = None) -> str:
    """Return data as JSON, with a line break; non-finite numbers become null: JSON has no name for
    them.
    """
    return json.dumps(finite(data), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def save_text(path: Path, text: str | bytes, option: str = "") -> None:
    """Write a file that a person named by an option, whole or not at all, with its folder; or raise
    a SettingsError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, text)
    except OSError as error:
        said = f"{option} {path}".lstrip()
        raise SettingsError(
            f"{said}: cannot be written ({error.strerror}); choose another place."
        ) from error


def write_text_atomic(path: Path, text: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash, sees the old file or the whole new one; `mode`
    less the umask.
    """
    # Not by mkstemp, whose files only their owner reads.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb"
        ) as file:
            file.write(text if isinstance(text, bytes) else text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `target` at the end; after an error `target` is
    what it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target: a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        yield new
        if target.exists():
            os.replace(target, Path(scratch) / "old")
        os.replace(new, target)
        sync_folder(target.parent)


def append_jsonl(path: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to a JSON Lines file by one write each; non-finite numbers become null."""
    with path.open("ab", buffering=0) as file:
        for row in rows:
            line = json_text(row).encode()
            start = file.tell()
            if file.write(line) != len(line):
                # A disk that fills up takes a part: the next row must not be glued to it.
                file.truncate(start)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def sync_folder(folder: Path) -> None:
    """Return once the folder's own entries are on disk: names that were added, renamed or
    removed.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recorded_settings(run_folder: Path) -> dict[str, Any]:
    """Return a run's settings by variable, as `settings.json` has them; nothing where it cannot be
    read.
    """
    found = _settings_file(run_folder).get("settings")
    return found if isinstance(found, dict) else {}


def _settings_file(run_folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((run_folder / "settings.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def finite(data: Any) -> Any:
    """Return data as JSON can hold it: non-finite numbers become None, tuples lists."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data
