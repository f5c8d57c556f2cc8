"""Checkpoints that cannot be torn: written aside, synced, listed in a manifest, then renamed.

Folder names in a run folder, N being the step:
- `checkpoint-N`: whole, unless the disk lost something later;
- `.checkpoint-N.partial`: being written, or left by a process that was killed meanwhile;
- `.checkpoint-N.old`: the one that a new `checkpoint-N` is about to replace;
- `.checkpoint-N.removed`: being removed.

A link with such a name is none of ours: it is not gone on from, and what it points to is never
removed."""

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from hanabi_grpo.errors import HanabiGrpoError, RunFolderError
from hanabi_grpo.runs.manifest import (
    CHECKPOINT_NAME,
    Manifest,
    check_checkpoint,
    file_sizes,
    read_manifest,
    write_manifest,
)
from hanabi_grpo.runs.run_folder import sync_folder

logger = logging.getLogger(__name__)

_HIDDEN_NAME = re.compile(r"\.checkpoint-(0|[1-9][0-9]*)\.(partial|old|removed)")
_MARGIN_BYTES = 16 << 20
_REMEDIES = {
    errno.ENOSPC: "Free space there, or keep fewer with SAVE_TOTAL_LIMIT",
    errno.EDQUOT: "Your quota is used up: free space there, or keep fewer with SAVE_TOTAL_LIMIT",
    errno.EFBIG: "Raise this shell's limit on file sizes: ulimit -f unlimited",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """The newest valid checkpoint of a run."""

    folder: Path
    manifest: Manifest
    skipped: tuple[str, ...]
    """Each newer one that cannot be used and why, newest first."""


def write_checkpoint(
    run_folder: Path,
    step: int,
    fill: Callable[[Path], None],
    facts: Mapping[str, object],
    *,
    needed_bytes: int,
) -> Path:
    """Write `checkpoint-<step>`: it appears by a rename, once every file in it is on disk.

    A `checkpoint-<step>` that exists is replaced. Whatever is raised meanwhile, nothing
    half-written stays visible and earlier checkpoints are as they were.

    Args:
        run_folder: Where; must exist.
        step: Optimizer steps behind it.
        fill: Writes the files, with any sub-folders, into the folder that it is given.
        facts: Further keys of the manifest, none of its own.
        needed_bytes: What `fill` will write, about; 10 % and 16 MiB more must be free.

    Raises:
        RunFolderError: Too little space, or the operating system refuses.
    """
    target = run_folder / f"checkpoint-{step}"
    partial, aside = (target.with_name(f".{target.name}.{kind}") for kind in ("partial", "old"))
    try:
        _check_space(target, needed_bytes)
        _remove(partial)
        partial.mkdir()
        fill(partial)
        _sync(partial)
        write_manifest(partial, step=step, facts=facts)
        _put_in_place(partial, target, aside)
    except BaseException as error:
        with contextlib.suppress(OSError):
            if aside.exists() and not target.exists():
                os.rename(aside, target)
            # What cannot be removed has a hidden name and goes with the next rotation.
            _remove(partial)
        if isinstance(error, HanabiGrpoError) or not isinstance(error, OSError | SafetensorError):
            raise
        # safetensors writes files itself and tells the reason in words only.
        told = re.search(r"\(os error (\d+)\)", str(error))
        code = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if code is None:
            raise
        raise RunFolderError(
            f"{target}: cannot be written ({os.strerror(code)}). Nothing half-written is left; "
            "earlier checkpoints are "
            f"as they were. {_REMEDIES.get(code, f'Make {run_folder} writable')}, then go on with "
            f"OUTPUT_DIR={run_folder} RESUME=latest."
        ) from error
    logger.info("checkpoint: %s", target)
    return target


def find_checkpoint(run_folder: Path, *, needs: str = "") -> FoundCheckpoint:
    """Return the newest checkpoint whose every hash is right, and that holds the folder `needs`;
    nothing is changed.

    Without one a RunFolderError says why each cannot be used.
    """
    skipped: list[str] = []
    for _, kind, folder in _candidates(run_folder):
        if folder.is_symlink():
            target = folder.resolve()
            skipped.append(
                f"{folder}: is a link; to go on from where it points, name that: RESUME={target}"
            )
            continue
        if kind == "partial":
            skipped.append(f"{folder}: was being written when its process ended.")
        if kind in ("partial", "removed"):
            continue
        try:
            manifest = check_checkpoint(folder)
            if not needs or any(name.startswith(f"{needs}/") for name in manifest.files):
                return FoundCheckpoint(folder=folder, manifest=manifest, skipped=tuple(skipped))
            skipped.append(f"{folder}: is whole but holds no {needs}/.")
        except RunFolderError as error:
            skipped.append(str(error))
    reasons = "\n".join(f"  {text}" for text in skipped) or "  there is no checkpoint-N in it."
    raise RunFolderError(f"{run_folder}: no valid checkpoint to go on from.\n{reasons}")


def last_saved(run_folder: Path) -> str:
    """Return when the newest checkpoint of a run was saved, by its manifest (ISO 8601); "" without
    a readable one.
    """
    saved = [""]
    for folder in _whole(run_folder):
        with contextlib.suppress(RunFolderError):
            saved.append(read_manifest(folder).created)
    return max(saved)


def rotate(run_folder: Path, keep: int, *, best: int | None = None) -> tuple[Path, ...]:
    """Remove the oldest checkpoints beyond `keep`, and what killed processes left; returns those
    removed.

    That of the step `best` stays.

    Call it after a checkpoint was written. The last valid one is never removed, however many newer
    ones are damaged. A folder that cannot be removed is logged and tried again the next time."""
    recover_checkpoints(run_folder)
    whole = _whole(run_folder)
    kept, surplus = whole[:keep], [one for one in whole[keep:] if one.name != f"checkpoint-{best}"]
    while surplus and not any(_is_valid(folder) for folder in kept):
        kept.append(surplus.pop(0))
    removed = []
    for folder in reversed(surplus):
        hidden = folder.with_name(f".{folder.name}.removed")
        try:
            # Hidden first: a kill while files go one by one leaves nothing that looks like a
            # checkpoint.
            os.rename(folder, hidden)
            _remove(hidden)
        except OSError as error:
            logger.warning(
                "%s: cannot be removed (%s); tried again after the next checkpoint", folder, error
            )
        removed.append(folder)
    return tuple(removed)


def recover_checkpoints(run_folder: Path) -> None:
    """Finish what a killed process began: bring back a checkpoint that was set aside, remove other
    rests.

    Only for the process that holds the run folder's lock; another's checkpoint may be half-way just
    now."""
    for step, kind, folder in _candidates(run_folder):
        target = run_folder / f"checkpoint-{step}"
        try:
            if (
                kind == "old"
                and not folder.is_symlink()
                and _is_valid(folder)
                and not _is_valid(target)
            ):
                _remove(target)
                os.rename(folder, target)
                sync_folder(run_folder)
                logger.info("%s: brought back; a process was killed while it replaced it", target)
            elif kind:
                _remove(folder)
        except OSError as error:
            logger.warning(
                "%s: a rest of a killed process that cannot be removed (%s)", folder, error
            )


def _candidates(run_folder: Path) -> list[tuple[int, str, Path]]:
    # (step, "" or what the hidden name says, folder): newest step first, of one step the proper
    # name first.
    found = []
    try:
        for folder in run_folder.iterdir():
            if match := CHECKPOINT_NAME.fullmatch(folder.name):
                found.append((int(match[1]), "", folder))
            elif match := _HIDDEN_NAME.fullmatch(folder.name):
                found.append((int(match[1]), match[2], folder))
    except OSError as error:
        raise RunFolderError(
            f"{run_folder}: cannot be read as a run folder ({error.strerror})."
        ) from error
    return sorted(found, key=lambda item: (-item[0], item[1]))


def _whole(run_folder: Path) -> list[Path]:
    return [
        folder
        for _, kind, folder in _candidates(run_folder)
        if not kind and not folder.is_symlink()
    ]


def _is_valid(folder: Path) -> bool:
    try:
        check_checkpoint(folder)
    except RunFolderError:
        return False
    return True


def _check_space(target: Path, needed_bytes: int) -> None:
    needed, free = (
        needed_bytes + needed_bytes // 10 + _MARGIN_BYTES,
        shutil.disk_usage(target.parent).free,
    )
    if free < needed:
        raise RunFolderError(
            f"{target}: needs {needed / 2**20:.0f} MiB of free space, {free / 2**20:.0f} MiB are "
            "left. "
            f"{_REMEDIES[errno.ENOSPC]}, then go on with OUTPUT_DIR={target.parent} RESUME=latest."
        )


def _sync(partial: Path) -> None:
    for name in file_sizes(partial):
        with (partial / name).open("rb") as file:
            os.fsync(file.fileno())
    for parent, _, _ in os.walk(partial, topdown=False):
        sync_folder(Path(parent))


def _put_in_place(partial: Path, target: Path, aside: Path) -> None:
    if target.is_symlink():
        _remove(target)
    elif target.exists():
        _remove(aside)
        os.rename(target, aside)
    os.rename(partial, target)
    sync_folder(target.parent)
    _remove(aside)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)
