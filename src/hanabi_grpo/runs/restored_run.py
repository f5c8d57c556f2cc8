"""A run that resumes from its artifact, on a machine without its run folder.

With UPLOAD_CKPT_TO_WANDB=full an artifact holds the adapters, the trainer's state (`trainer/`) and
the records of the run (`run/`). From these a run folder with one checkpoint is created; its run is
then resumed like any other.

Example:
    run/metrics.jsonl and manifest.json, player_0/…, player_1/…, trainer/… of an artifact of step 50
    become metrics.jsonl and checkpoint-50/manifest.json, checkpoint-50/player_0/… and so on
"""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes, sync_folder
from hanabi_grpo.runs.manifest import MANIFEST, Manifest, check_checkpoint, read_manifest
from hanabi_grpo.runs.run_folder import (
    OUTPUTS,
    new_folder,
    plain_name,
    some_of,
    used_entries,
    write_json_atomic,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import HubPlace, WandbPlace, is_remote, parse_checkpoint
from hanabi_grpo.settings.saved import SETTINGS_FILE

TRAINER_STATE = "trainer"
"""Folder in a checkpoint with the state that only a resumed trainer needs."""
RUN_FILES = "run"
"""Folder in an artifact with the records of its run."""
_RECORD = "restored.json"
"""File in a run folder that was made from an artifact."""
_LEFT_OUT = ("args.json", "logging.jsonl", "resume.json", _RECORD)
"""Files of a run folder that every start rewrites."""


class Restored(BaseModel):
    """Content of `restored.json`: what a run folder was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: str
    """RESUME, as given."""
    artifact: str
    """The folder that held the artifact."""
    step: int
    """Optimizer steps behind the checkpoint."""
    is_whole: bool
    """False while the folder is being filled, and after a crash during that time."""


def run_files(run_folder: Path) -> list[Path]:
    """Return the files of a run folder that a restored run needs or shows, by name.

    They are the plain files in the folder itself, except hidden ones: the run's secret, its lock,
    and unfinished files.
    """
    files = []
    for path in sorted(run_folder.iterdir()):
        is_plain = path.is_file() and not path.is_symlink()
        if is_plain and not path.name.startswith(".") and path.name not in _LEFT_OUT:
            files.append(path)
    return files


def names_artifact(resume: str) -> bool:
    """Tell whether RESUME names an artifact: one at W&B, or the folder of one.

    Raises:
        RunFolderError: It names a repository of the hub, which never holds a trainer's state.
    """
    if is_remote(resume):
        if isinstance(parse_checkpoint(resume).place, HubPlace):
            raise RunFolderError(
                f"RESUME={resume}: a repository of the hub holds adapters without the optimizer's "
                "state, so training cannot resume from it. Start a new run from its adapters: "
                f"HANABI_START_FROM={resume}"
            )
        return True
    folder = Path(resume)
    return (folder / MANIFEST).is_file() and (folder / RUN_FILES / SETTINGS_FILE).is_file()


def restored_folder(settings: Settings) -> Path:
    """Return the run folder of a run that RESUME restores: OUTPUT_DIR, or one named after it.

    Example:
        RESUME=wandb:team/hanabi/laptop-adapters:v3 without OUTPUT_DIR: outputs/laptop-adapters-v3
    """
    if settings.output_dir is not None:
        return settings.output_dir
    resume = str(settings.resume)
    if is_remote(resume):
        place = parse_checkpoint(resume).place
        if not isinstance(place, WandbPlace):
            raise TypeError(f"{resume} is not an artifact at W&B")
        name = f"{place.name}-{place.alias}" if place.alias else place.name
    else:
        folder = Path(resume).resolve()
        name = f"{folder.parent.name}-{folder.name}"
    return OUTPUTS / plain_name(name).strip("-.")


def is_restored(folder: Path, resume: str) -> bool:
    """Tell whether a run folder was made from what RESUME names, and is whole."""
    record = _read_record(folder)
    return record is not None and record.source == resume and record.is_whole


def restored_step(folder: Path) -> int | None:
    """Return the step of the artifact that a run folder was made from; None: of no artifact."""
    record = _read_record(folder)
    return None if record is None else record.step


def restore_run(artifact: Path, folder: Path, *, resume: str) -> Manifest:
    """Make a run folder from an artifact.

    A folder that a crash left unfinished is filled again. An artifact may come from anywhere, so
    only its plain files are copied: no file that a link points to, and no secret of another run.

    Args:
        artifact: Folder with the artifact's files.
        folder: The run folder; it may hold logs, like any fresh one.
        resume: RESUME, for the record and for messages.

    Returns:
        The manifest of the checkpoint.

    Raises:
        RunFolderError: The artifact holds no trainer's state, or is damaged; or the folder holds
            another run, or cannot be written.
    """
    manifest = _check_artifact(artifact, resume)
    record = _read_record(folder)
    is_unfinished = record is not None and record.source == resume
    used = used_entries(folder) if folder.is_dir() else []
    if used and not is_unfinished:
        raise RunFolderError(
            f"RESUME={resume}: OUTPUT_DIR={str(folder)!r} already holds another run "
            f"({some_of(used)}). Choose another OUTPUT_DIR, or continue the run in it: "
            "RESUME=latest"
        )
    made = Restored(source=resume, artifact=str(artifact), step=manifest.step, is_whole=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_record(folder, made)
        _copy_checkpoint(artifact, folder / f"checkpoint-{manifest.step}", manifest)
        for path in run_files(artifact / RUN_FILES):
            name = path.name
            if path.suffix == ".log":
                # Programs that run now write logs with these names.
                name = f"{path.stem}-until-step-{manifest.step}.log"
            shutil.copy2(path, folder / name)
        sync_folder(folder)
        _write_record(folder, made.model_copy(update={"is_whole": True}))
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(
            f"RESUME={resume}: {folder} cannot be written ({error.strerror}). Free space or make "
            "it writable, and start again: that copies the missing files."
        ) from error
    return manifest


def _check_artifact(artifact: Path, resume: str) -> Manifest:
    """Refuse an artifact that cannot be resumed; the checkpoint's files are checked later."""
    manifest = read_manifest(artifact)
    has_state = (artifact / TRAINER_STATE).is_dir()
    records = artifact / RUN_FILES
    names = []
    if records.is_dir() and not records.is_symlink():
        names = [path.name for path in run_files(records)]
    if not has_state or SETTINGS_FILE not in names:
        raise RunFolderError(
            f"RESUME={resume}: {artifact} holds adapters but not the optimizer's state and the "
            "run's records, which UPLOAD_CKPT_TO_WANDB=full uploads, so training cannot resume "
            f"from it. Start a new run from its adapters: HANABI_START_FROM={resume}"
        )
    return manifest


def _copy_checkpoint(artifact: Path, checkpoint: Path, manifest: Manifest) -> None:
    """Copy the files that the manifest lists; the checkpoint appears once all of them match it."""
    with new_folder(checkpoint) as partial:
        for name in (*manifest.files, MANIFEST):
            source = artifact / name
            if source.is_symlink() or not source.is_file():
                raise RunFolderError(f"{artifact}: {name} is missing, or is not a plain file.")
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        check_checkpoint(partial)


def _read_record(folder: Path) -> Restored | None:
    """Return what a folder was made from; None if it was not made from an artifact."""
    try:
        return Restored.model_validate_json(read_bytes(folder / _RECORD, MAX_DOCUMENT_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RunFolderError(
            f"{folder / _RECORD}: not written by hanabi-grpo ({error}); remove the folder, or "
            "choose another OUTPUT_DIR."
        ) from error


def _write_record(folder: Path, record: Restored) -> None:
    write_json_atomic(folder / _RECORD, record.model_dump())
