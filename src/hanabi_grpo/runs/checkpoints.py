"""Atomic checkpoints: written to a hidden folder, synced, listed in a manifest, then renamed.

Folder names in a run folder, where N is the step:
- `checkpoint-N`: complete, unless the disk lost data later;
- `.checkpoint-N.partial`: being written, or left by a process that was killed while writing;
- `.checkpoint-N.old`: a checkpoint that a new `checkpoint-N` is about to replace;
- `.checkpoint-N.removed`: being removed.

A symbolic link with such a name is not a checkpoint: no run is resumed from it, and its target is
never removed.
"""

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, UnreadableError
from hanabi_grpo.files import sync_folder, sync_tree
from hanabi_grpo.runs.manifest import (
    CHECKPOINT_NAME,
    Manifest,
    check_checkpoint,
    read_manifest,
    write_manifest,
)

logger = logging.getLogger(__name__)

_HIDDEN_NAME = re.compile(r"\.checkpoint-(0|[1-9][0-9]*)\.(partial|old|removed)")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""In a SafetensorError: safetensors writes files itself and has the reason only in its text."""
_MARGIN_BYTES = 16 << 20
"""Space that must stay free in addition to a new checkpoint."""
_REMEDIES = {
    errno.ENOSPC: "Free space there",
    errno.EDQUOT: "Your quota is used up: free space there",
    errno.EFBIG: "Raise this shell's limit on file sizes: ulimit -f unlimited",
}
"""What to do, by the operating system's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """The newest valid checkpoint of a run."""

    folder: Path
    manifest: Manifest
    skipped: tuple[str, ...]
    """Newer checkpoints that cannot be used, and why, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A folder or link with the name of a checkpoint, or of a partial, old or removed one."""

    step: int
    kind: str
    """Empty: `checkpoint-N`; else the suffix of the hidden name, e.g. "partial"."""
    folder: Path


def write_checkpoint(
    run_folder: Path,
    step: int,
    fill: Callable[[Path], None],
    facts: Mapping[str, object],
    *,
    needed_bytes: int,
    next_step: str | None = None,
) -> Path:
    """Write `checkpoint-<step>`: it appears by a rename, once every file in it is on disk.

    An existing `checkpoint-<step>` is replaced. If anything is raised, no partial checkpoint stays
    visible and earlier checkpoints are unchanged.

    Args:
        run_folder: The run's folder; must exist.
        step: Optimizer steps behind the checkpoint.
        fill: Writes the files, with any sub-folders, into the folder that it is given.
        facts: Further keys of the manifest.
        needed_bytes: Approximate size of what `fill` writes; 10 % and 16 MiB more must be free.
        next_step: How to continue after an error is remedied; None: the variables of a training
            run.

    Returns:
        The checkpoint's folder.

    Raises:
        RunFolderError: Too little space, or the operating system refuses.
    """
    if next_step is None:
        next_step = (
            f"continue with OUTPUT_DIR={run_folder} RESUME=latest; a lower SAVE_TOTAL_LIMIT keeps "
            "fewer checkpoints"
        )
    target = run_folder / f"checkpoint-{step}"
    partial = target.with_name(f".{target.name}.partial")
    replaced = target.with_name(f".{target.name}.old")
    try:
        _check_space(target, needed_bytes, next_step)
        _remove(partial)
        partial.mkdir()
        fill(partial)
        sync_tree(partial)
        write_manifest(partial, step=step, facts=facts)
        _put_in_place(partial, target, replaced)
    except BaseException as error:
        with contextlib.suppress(OSError):
            if replaced.exists() and not target.exists():
                os.rename(replaced, target)
            # If it cannot be removed, it has a hidden name and the next rotation removes it.
            _remove(partial)
        code = _os_error_code(error)
        if code is None:
            raise
        remedy = _REMEDIES.get(code, f"Make {run_folder} writable")
        raise RunFolderError(
            f"{target}: cannot be written ({os.strerror(code)}). No partial files are left, and "
            f"earlier checkpoints are unchanged. {remedy}, then {next_step}."
        ) from error
    logger.info("checkpoint: %s", target)
    return target


def find_checkpoint(run_folder: Path, *, needs: str = "") -> FoundCheckpoint:
    """Return the newest checkpoint whose hashes all match; nothing is changed.

    Args:
        run_folder: The run's folder.
        needs: A folder that the checkpoint must hold, e.g. "trainer".

    Raises:
        RunFolderError: There is none; the message says why each cannot be used.
        UnreadableError: The operating system refuses to read a newer one, perhaps only for a
            moment. It may be intact, and an older one would repeat its steps.
    """
    skipped: list[str] = []
    for candidate in _candidates(run_folder):
        folder = candidate.folder
        if folder.is_symlink():
            target = folder.resolve()
            skipped.append(
                f"{folder}: is a symbolic link; to resume from its target: RESUME={target}"
            )
            continue
        if candidate.kind == "partial":
            skipped.append(f"{folder}: was being written when its process ended.")
        if candidate.kind in ("partial", "removed"):
            continue
        try:
            manifest = check_checkpoint(folder)
        except RunFolderError as error:
            skipped.append(str(error))
            if isinstance(error, UnreadableError):
                raise UnreadableError(_no_checkpoint(run_folder, skipped)) from error
            continue
        if not needs or _has_folder(manifest, needs):
            return FoundCheckpoint(folder=folder, manifest=manifest, skipped=tuple(skipped))
        skipped.append(f"{folder}: is complete but has no {needs}/.")
    raise RunFolderError(_no_checkpoint(run_folder, skipped))


def _no_checkpoint(run_folder: Path, skipped: Sequence[str]) -> str:
    """Return the message that a run has no checkpoint to resume from, with the reasons."""
    message = f"{run_folder}: no valid checkpoint to resume from."
    for reason in skipped or ["there is no checkpoint-N in it."]:
        message += f"\n  {reason}"
    return message


def _has_folder(manifest: Manifest, name: str) -> bool:
    """Tell whether a checkpoint has files in a folder of this name."""
    return any(path.startswith(f"{name}/") for path in manifest.files)


def last_saved(run_folder: Path) -> str:
    """Return when the newest checkpoint of a run was saved, by its manifest.

    Returns:
        The time in ISO 8601, which sorts chronologically; "" without a valid manifest.

    Raises:
        UnreadableError: The operating system refuses to read a manifest.
    """
    newest = ""
    for folder in _visible_checkpoints(run_folder):
        try:
            created = read_manifest(folder).created
        except UnreadableError:
            raise
        except RunFolderError:
            continue
        newest = max(newest, created)
    return newest


def rotate(
    run_folder: Path, keep: int, *, best: int | None = None, every: int = 1
) -> tuple[Path, ...]:
    """Remove the oldest checkpoints beyond `keep`, and leftovers of killed processes.

    Call it after writing a checkpoint. The last valid one is never removed, however many newer ones
    are damaged. A folder that cannot be removed is logged and tried again next time.

    Args:
        run_folder: The run's folder.
        keep: Number of checkpoints that stay.
        best: Step of a checkpoint that is never removed.
        every: Only checkpoints whose step is a multiple of it count. Any other one was saved by an
            interrupt; it stays while it is the newest and displaces none that counts. So an
            interrupted run keeps the same counted checkpoints as an uninterrupted one.

    Returns:
        The folders that were surplus.
    """
    recover_checkpoints(run_folder)
    newest_first = _visible_checkpoints(run_folder)
    counted = [folder for folder in newest_first if _step_of(folder) % every == 0]
    kept = newest_first[:1]
    if kept == counted[:1]:
        counted = counted[:keep]
    surplus = []
    for folder in newest_first[1:]:
        if folder in counted:
            kept.append(folder)
        elif _step_of(folder) != best:
            surplus.append(folder)
    while surplus and not any(map(_is_valid, kept)):
        kept.append(surplus.pop(0))
    removed = []
    for folder in reversed(surplus):
        hidden = folder.with_name(f".{folder.name}.removed")
        try:
            # Hidden first: a kill during the removal leaves nothing that looks like a checkpoint.
            os.rename(folder, hidden)
            _remove(hidden)
        except OSError as error:
            logger.warning(
                "%s: cannot be removed (%s); tried again after the next checkpoint", folder, error
            )
        removed.append(folder)
    return tuple(removed)


def recover_checkpoints(run_folder: Path) -> None:
    """Clean up after a killed process.

    A checkpoint that was set aside is restored, other leftovers are removed. Only the process that
    holds the run folder's lock may call this; another process may be writing a checkpoint.
    """
    for candidate in _candidates(run_folder):
        if not candidate.kind:
            continue
        folder = candidate.folder
        target = run_folder / f"checkpoint-{candidate.step}"
        is_replaced = candidate.kind == "old" and not folder.is_symlink()
        try:
            if is_replaced and _is_valid(folder) and not _is_valid(target):
                _remove(target)
                os.rename(folder, target)
                sync_folder(run_folder)
                logger.info("%s: restored; a process was killed while replacing it", target)
            else:
                _remove(folder)
        except OSError as error:
            logger.warning("%s: left by a killed process; it cannot be removed (%s)", folder, error)


def _candidates(run_folder: Path) -> list[_Candidate]:
    """Return everything that is named like a checkpoint, newest step first.

    Among candidates of one step, the one without a hidden name comes first.
    """
    candidates = []
    try:
        for folder in run_folder.iterdir():
            match = CHECKPOINT_NAME.fullmatch(folder.name)
            if match:
                candidates.append(_Candidate(step=int(match[1]), kind="", folder=folder))
                continue
            match = _HIDDEN_NAME.fullmatch(folder.name)
            if match:
                candidates.append(_Candidate(step=int(match[1]), kind=match[2], folder=folder))
    except OSError as error:
        raise UnreadableError(
            f"{run_folder}: cannot be read as a run folder ({error.strerror})."
        ) from error
    return sorted(candidates, key=lambda candidate: (-candidate.step, candidate.kind))


def _visible_checkpoints(run_folder: Path) -> list[Path]:
    """Return the folders `checkpoint-N`, newest first; links are not among them."""
    folders = []
    for candidate in _candidates(run_folder):
        if not candidate.kind and not candidate.folder.is_symlink():
            folders.append(candidate.folder)
    return folders


def _step_of(checkpoint: Path) -> int:
    """Return the step of a folder `checkpoint-N`."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _is_valid(folder: Path) -> bool:
    try:
        check_checkpoint(folder)
    except RunFolderError:
        return False
    return True


def _os_error_code(error: BaseException) -> int | None:
    """Return the operating system's error code behind an exception; None if there is none."""
    if isinstance(error, HanabiGrpoError):
        return None
    if isinstance(error, OSError):
        return error.errno
    if isinstance(error, SafetensorError):
        match = _OS_ERROR.search(str(error))
        return int(match[1]) if match else None
    return None


def _check_space(target: Path, needed_bytes: int, next_step: str) -> None:
    """Refuse to write if too little space is free.

    Args:
        target: The checkpoint that is about to be written.
        needed_bytes: Its approximate size.
        next_step: See `write_checkpoint`.
    """
    needed = needed_bytes + needed_bytes // 10 + _MARGIN_BYTES
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise RunFolderError(
            f"{target}: needs {needed / 2**20:.0f} MiB of free space, but {free / 2**20:.0f} MiB "
            f"are left. {_REMEDIES[errno.ENOSPC]}, then {next_step}."
        )


def _put_in_place(partial: Path, target: Path, replaced: Path) -> None:
    """Rename a finished folder to its checkpoint name.

    Args:
        partial: The finished folder.
        target: Its new name; an existing checkpoint with this name is replaced.
        replaced: Name of the replaced checkpoint until it is removed.
    """
    if target.is_symlink():
        _remove(target)
    elif target.exists():
        _remove(replaced)
        os.rename(target, replaced)
    os.rename(partial, target)
    sync_folder(target.parent)
    try:
        _remove(replaced)
    except OSError as error:
        # The new checkpoint is in place; the replaced one has a hidden name.
        logger.warning(
            "%s: cannot be removed (%s); tried again after the next checkpoint", replaced, error
        )


def _remove(folder: Path) -> None:
    """Remove a folder with its contents; if it is a link, only the link."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)
