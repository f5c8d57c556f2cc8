"""The manifest of a checkpoint: its files with their hashes, which reveal damage."""

import errno
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import RunFolderError, UnreadableError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, open_plain, read_bytes
from hanabi_grpo.runs.run_folder import finite, write_json_atomic

MANIFEST = "manifest.json"
"""Name of the manifest in a checkpoint's folder."""
CHECKPOINT_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)")
"""Name of a checkpoint's folder; the number is its step."""

_ERRORS_OF_DAMAGE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.EFBIG}
)
"""Read errors that show what is wrong with the file: missing, not a plain file, or too long."""


def checkpoints_of(run_folder: Path) -> dict[int, Path]:
    """Return the folders with the name of a checkpoint, by step, oldest first.

    Each is complete: they appear by a rename.
    """
    by_step = {}
    for folder in run_folder.glob("checkpoint-*"):
        match = CHECKPOINT_NAME.fullmatch(folder.name)
        if match:
            by_step[int(match[1])] = folder
    return dict(sorted(by_step.items()))


def _inside(name: str) -> str:
    """Return the name of a file inside a checkpoint; a ValueError for any other path."""
    path = PurePosixPath(name)
    is_outside = path.is_absolute() or ".." in path.parts
    is_odd = path.as_posix() != name or name in (".", MANIFEST) or "\0" in name
    if is_outside or is_odd:
        raise ValueError("is not the name of a file inside the checkpoint")
    return name


class FileEntry(BaseModel):
    """Expected size and hash of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Content of `manifest.json`; further keys are the facts that the writer added.

    Example:
        {"format": 1, "step": 50, "adapters": ["player_0", "player_1"],
        "created": "2026-01-31T09:30:00+00:00", "files": {"player_0/adapter_config.json":
        {"bytes": 612, "sha256": "9f86…"}, …}, "manifest_sha256": "2c26…"}
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    format: Literal[1]
    """Version of the format."""
    step: int = Field(ge=0)
    """Optimizer steps behind the checkpoint."""
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry]
    """Size and hash of every file but the manifest, by its path below the checkpoint."""
    created: str
    """Time of writing in UTC, ISO 8601."""
    manifest_sha256: str
    """Hash of the rest of the manifest, because no file's hash protects the facts."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Further keys that the writer added, e.g. {"adapters": […], "model": "…"}."""
        return self.model_extra or {}


def is_checkpoint_of(checkpoint: Path, run_folder: Path) -> bool:
    """Tell whether a checkpoint lies in a run's folder; that of a fork's parent does not."""
    return checkpoint.resolve().parent == run_folder.resolve()


def spec_hashes(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hashes of the games that were trained on, see `envs.base.EnvSpec`.

    Args:
        facts: Facts of a checkpoint's manifest.
    """
    hashes = facts.get("spec_hashes")
    if not isinstance(hashes, list):
        return ()
    return tuple(str(spec_hash) for spec_hash in hashes)


def read_manifest(folder: Path) -> Manifest:
    """Read `manifest.json` of a checkpoint; its files are not checked.

    Raises:
        RunFolderError: The folder is not a checkpoint; the message says why.
        UnreadableError: The operating system refuses to read it.
    """
    try:
        data = json.loads(read_bytes(folder / MANIFEST, MAX_DOCUMENT_BYTES))
        manifest = Manifest.model_validate(data)
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder}: no {MANIFEST}; it was not written completely, or is not a checkpoint."
        ) from None
    except OSError as error:
        raise _cannot_read(folder, MANIFEST, error) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ""
        for part in first["loc"]:
            where += f"{part}: "
        raise RunFolderError(
            f"{folder}: {MANIFEST} is not from this version ({where}{first['msg']})."
        ) from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{folder}: {MANIFEST} is not JSON ({error}).") from error
    sha256 = manifest_sha256(data)
    if sha256 != manifest.manifest_sha256:
        raise RunFolderError(
            f"{folder}: {MANIFEST} has sha256 {sha256}, but says {manifest.manifest_sha256!r}; "
            "something changed it."
        )
    return manifest


def write_manifest(folder: Path, *, step: int, facts: Mapping[str, object]) -> None:
    """Write the manifest of a folder's current content; its files must be on disk already.

    Args:
        folder: The checkpoint's folder.
        step: Optimizer steps behind it.
        facts: Further keys of the manifest.

    Raises:
        OSError: A file cannot be read or written.
    """
    files = {}
    for name, size in sorted(file_sizes(folder).items()):
        entry = FileEntry(bytes=size, sha256=file_sha256(folder / name))
        files[name] = entry.model_dump()
    content = {
        "format": 1,
        "step": step,
        **facts,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": files,
    }
    # Hashed as a reader sees it: JSON turns keys that are numbers into strings, tuples into lists.
    data = json.loads(json.dumps(finite(content)))
    write_json_atomic(folder / MANIFEST, {**data, "manifest_sha256": manifest_sha256(data)})


def manifest_sha256(data: Mapping[str, Any]) -> str:
    """Return the hash over a manifest's content, without the hash itself.

    Line breaks and the order of keys do not matter.
    """
    content = dict(data)
    content.pop("manifest_sha256", None)
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_checkpoint(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files are exactly the listed ones.

    Raises:
        RunFolderError: A file differs; the message names the first one.
        UnreadableError: The operating system refuses to read a file.
    """
    manifest = read_manifest(folder)
    match = CHECKPOINT_NAME.fullmatch(folder.name)
    if match and int(match[1]) != manifest.step:
        raise RunFolderError(f"{folder}: its {MANIFEST} is for step {manifest.step}.")
    try:
        sizes = file_sizes(folder)
        for name in sorted(manifest.files.keys() | sizes.keys()):
            entry = manifest.files.get(name)
            _check_file(folder, name, entry, sizes.get(name))
    except RunFolderError:
        # A RunFolderError is an OSError as well.
        raise
    except OSError as error:
        raise _cannot_read(folder, error.filename or "a file", error) from error
    return manifest


def _cannot_read(folder: Path, name: str, error: OSError) -> RunFolderError:
    message = f"{folder}: {name} cannot be read ({error.strerror})."
    if error.errno in _ERRORS_OF_DAMAGE:
        return RunFolderError(message)
    return UnreadableError(message)


def _check_file(folder: Path, name: str, entry: FileEntry | None, size: int | None) -> None:
    """Refuse a file that differs from the manifest.

    Args:
        folder: The checkpoint's folder.
        name: Path of the file in the folder, with slashes.
        entry: The manifest's entry of the file; None: it is not listed.
        size: Size of the file in bytes; None: it is missing.
    """
    if size is None:
        raise RunFolderError(f"{folder}: {name} is missing.")
    if entry is None:
        raise RunFolderError(f"{folder}: {name} is not listed in {MANIFEST}.")
    if size != entry.bytes:
        raise RunFolderError(f"{folder}: {name} has {size} bytes, {MANIFEST} says {entry.bytes}.")
    sha256 = file_sha256(folder / name)
    if sha256 != entry.sha256:
        raise RunFolderError(
            f"{folder}: {name} has sha256 {sha256}, {MANIFEST} says {entry.sha256}."
        )


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of a checkpoint except its manifest, by path with slashes.

    Raises:
        RunFolderError: A path is neither a plain file nor a folder.
    """
    sizes = {}
    for path in folder.rglob("*"):
        relative = path.relative_to(folder).as_posix()
        is_plain = path.is_file() or path.is_dir()
        if path.is_symlink() or not is_plain:
            raise RunFolderError(f"{folder}: {relative} is not a plain file.")
        if path.is_file() and relative != MANIFEST:
            sizes[relative] = path.stat().st_size
    return sizes


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
