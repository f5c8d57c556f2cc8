"""Resuming: the plan that RESUME asks for, and the file that passes it on to the trainer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import RunFolderError, UnreadableError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.runs.checkpoints import find_checkpoint, last_saved
from hanabi_grpo.runs.manifest import (
    CHECKPOINT_NAME,
    MANIFEST,
    Manifest,
    check_checkpoint,
    is_checkpoint_of,
)
from hanabi_grpo.runs.restored_run import (
    TRAINER_STATE,
    is_restored,
    names_artifact,
    restored_folder,
)
from hanabi_grpo.runs.resume_settings import (
    check_compatible,
    check_new_teacher,
    read_saved_settings,
)
from hanabi_grpo.runs.run_folder import (
    OUTPUTS,
    holder_of,
    run_folder_name,
    run_home,
    some_of,
    used_entries,
    write_json_atomic,
)
from hanabi_grpo.runs.start_record import RecordedGame
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.saved import SETTINGS_FILE

LATEST = "latest"
"""Value of RESUME that always yields a plan, see `plan_resume`."""
_RESUME_FILE = "resume.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """Where a run writes and what it starts from, with a summary for the terminal."""

    run_folder: Path
    """Folder of the run; it may not exist yet when a run starts at step 0 or is a fork."""
    summary: str
    """E.g. "resumes from step 50 (outputs/a/checkpoint-50, saved 2026-01-31T09:30:00+00:00)"."""
    checkpoint: Path | None = None
    """Checkpoint to start from; None: start at step 0."""
    step: int = 0
    """Optimizer steps behind the checkpoint."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that cannot be used, and why."""
    fork: bool = False
    """The checkpoint belongs to another run, which stays unchanged."""
    is_begun: bool = False
    """Whether a fork was started before, but has not saved its own checkpoint yet."""

    @property
    def needs_fresh_folder(self) -> bool:
        """Whether `run_folder` must not hold a run yet."""
        return self.fork and not self.is_begun


class ResumePoint(BaseModel):
    """Content of `resume.json`, for the trainer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: Path
    step: int = Field(ge=0)
    """Optimizer steps behind the checkpoint."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that cannot be used, and why."""


def plan_resume(settings: Settings, now: datetime | None = None) -> ResumePlan | None:
    """Find what RESUME and OUTPUT_DIR ask for; nothing is changed.

    `latest` always yields a plan, so a supervisor may start every attempt with it: without a valid
    checkpoint the run starts over, at step 0 or, if it is a fork, at the other run's checkpoint.
    The plan for an artifact describes the run folder that `restore_run` makes from it. Once that
    folder exists, its run is continued as with `latest`, so here too the same command may start
    every attempt.

    Args:
        settings: The run's settings.
        now: Time in the name of a new folder; None: the current time.

    Returns:
        The plan; None without RESUME.

    Raises:
        RunFolderError: There is no such folder; the named run has no valid checkpoint; the
            checkpoint is damaged or lacks the trainer's state, or newer ones of the same run are
            valid; or the folder of a fork is in use, or the checkpoint that it began with is gone.
        UnreadableError: The operating system refuses to read the run's checkpoints.
    """
    if settings.resume is None:
        return None
    if settings.resume != LATEST:
        if names_artifact(settings.resume):
            return _plan_restored(settings.resume, restored_folder(settings))
        return _plan_named(Path(settings.resume), settings.output_dir)
    if settings.output_dir is not None:
        return _plan_latest_in(settings.output_dir)
    return _plan_latest_of_all(settings, now or datetime.now())


def write_resume(plan: ResumePlan | None, run_folder: Path) -> None:
    """Write `resume.json` for the trainer; a run that starts at step 0 has none."""
    path = run_folder / _RESUME_FILE
    if plan is None or plan.checkpoint is None:
        path.unlink(missing_ok=True)
        return
    point = ResumePoint(
        checkpoint=plan.checkpoint.resolve(),
        step=plan.step,
        skipped=plan.skipped,
    )
    write_json_atomic(path, point.model_dump(mode="json"))


def read_resume(run_folder: Path) -> ResumePoint | None:
    """Return the checkpoint that this run starts from; None: step 0.

    Raises:
        RunFolderError: `resume.json` cannot be read.
    """
    path = run_folder / _RESUME_FILE
    try:
        return ResumePoint.model_validate_json(read_bytes(path, MAX_DOCUMENT_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RunFolderError(
            f"{path}: not written by hanabi-grpo train ({error}); start it again."
        ) from error


def resume_lines(
    resume: ResumePlan | None,
    settings: Settings,
    steps: int,
    *,
    games: Sequence[RecordedGame] | None = None,
    options: Sequence[str] | None = None,
) -> list[str]:
    """Return the lines that the terminal shows about a resume.

    They say where it continues from, what was skipped, and which settings changed.

    Args:
        resume: The plan; None without RESUME.
        settings: The current settings.
        steps: Optimizer steps of the whole run.
        games: The games that are trained on; None: unknown, so they are not compared.
        options: The options for ms-swift; None: unknown, so they are not compared.

    Raises:
        SettingsError: Settings, the content of files or options were changed that must stay the
            same within a run.
    """
    if resume is None:
        return []
    lines = [f"RESUME={settings.resume}: {resume.summary}"]
    for reason in resume.skipped:
        lines.append(f"    skipped: {reason}")
    if resume.checkpoint is not None:
        saved = read_saved_settings(resume.checkpoint.parent)
        notes = check_compatible(saved, settings, fork=resume.fork, games=games, options=options)
        check_new_teacher(saved, settings, resume.step)
        for note in notes:
            lines.append(f"    changed since: {note}")
    return lines


def _plan_restored(resume: str, run_folder: Path) -> ResumePlan:
    """Return the plan for an artifact.

    Args:
        resume: RESUME.
        run_folder: The run folder that is made from it.
    """
    if is_restored(run_folder, resume):
        return _plan_latest_in(run_folder)
    return ResumePlan(run_folder=run_folder, summary=f"a run folder is made from it: {run_folder}")


def _plan_latest_in(run_folder: Path) -> ResumePlan:
    """Return the plan for RESUME=latest with OUTPUT_DIR."""
    used = used_entries(run_folder) if run_folder.is_dir() else []
    if not used:
        return _from_zero(run_folder, f"nothing to resume in {run_folder} yet")
    has_checkpoint = any(map(CHECKPOINT_NAME.fullmatch, used))
    # A fork writes `_RESUME_FILE` first.
    if SETTINGS_FILE not in used and _RESUME_FILE not in used and not has_checkpoint:
        raise RunFolderError(
            f"OUTPUT_DIR={str(run_folder)!r}: holds {some_of(used)} but neither {SETTINGS_FILE} "
            "nor a checkpoint, so it is not the folder of a run. Choose another OUTPUT_DIR."
        )
    try:
        return _from_newest(run_folder, run_folder)
    except UnreadableError as error:
        # Perhaps only for a moment: a run that started over would move its records aside, and
        # overwrite its checkpoints.
        raise UnreadableError(
            f"{error}\nIts checkpoints may be intact, so the run does not start over. Make them "
            "readable and start again, or choose another OUTPUT_DIR for a new run."
        ) from error
    except RunFolderError as error:
        # The first line repeats the reason in the plans below.
        lines = _stripped_lines(error)
        reasons = lines[1:] or lines
    origin = _origin_of_fork(run_folder)
    if origin is not None:
        try:
            return _fork_anew(run_folder, origin, reasons)
        except RunFolderError as error:
            # Without its own checkpoints, the folder is not one of a run that was moved.
            if not has_checkpoint:
                raise
            reasons += _stripped_lines(error)
    return _from_zero(run_folder, f"no checkpoint to resume from in {run_folder}", skipped=reasons)


def _origin_of_fork(run_folder: Path) -> Path | None:
    """Return the checkpoint of another run that the last start in this folder continued from."""
    try:
        point = read_resume(run_folder)
    except RunFolderError:
        return None
    if point is None or is_checkpoint_of(point.checkpoint, run_folder):
        return None
    return point.checkpoint


def _fork_anew(run_folder: Path, checkpoint: Path, skipped: Sequence[str]) -> ResumePlan:
    """Return the plan for a fork without its own checkpoint: it starts from the same one as before.

    Args:
        run_folder: The fork's folder.
        checkpoint: The other run's checkpoint, with which it began.
        skipped: Why none of the fork's own checkpoints can be used.
    """
    try:
        manifest = _check_resumable(checkpoint)
    except RunFolderError as error:
        raise RunFolderError(
            f"OUTPUT_DIR={str(run_folder)!r}: has no valid checkpoint of its own yet, and the one "
            f"that it began with cannot be used: {error} Restore that one, or start a new run in "
            "another OUTPUT_DIR."
        ) from error
    plan = _from_checkpoint(run_folder, checkpoint, manifest, tuple(skipped), fork=True)
    return replace(plan, is_begun=True)


def _plan_latest_of_all(settings: Settings, now: datetime) -> ResumePlan:
    """Return the plan for RESUME=latest without OUTPUT_DIR: continue the run that saved last."""
    runs = [path.parent for path in OUTPUTS.glob(f"*/{SETTINGS_FILE}")]
    # Copies, checkouts and editors change the times of files, but not the content of a manifest.
    skipped: list[str] = []
    try:
        runs.sort(key=lambda run: (last_saved(run), run.name), reverse=True)
    except UnreadableError as error:
        raise _unreadable_newest(error) from error
    for run_folder in runs:
        try:
            return _from_newest(run_folder, run_folder, skipped)
        except UnreadableError as error:
            raise _unreadable_newest(error) from error
        except RunFolderError as error:
            skipped += _stripped_lines(error)
    new_folder = OUTPUTS / run_folder_name(settings, now)
    return _from_zero(new_folder, f"no run in {OUTPUTS}/ has a valid checkpoint", skipped=skipped)


def _unreadable_newest(error: UnreadableError) -> UnreadableError:
    """Return the error of RESUME=latest if it cannot be told which run was saved last."""
    return UnreadableError(
        f"{error}\nThe run that was saved last may be this one, so no other one is continued. Make "
        f"it readable, move it out of {OUTPUTS}/, or name the run: RESUME=latest OUTPUT_DIR=(its "
        "folder)."
    )


def _stripped_lines(error: Exception) -> list[str]:
    """Return the lines of an error message without indentation."""
    return [line.strip() for line in str(error).splitlines()]


def _plan_named(named: Path, output_dir: Path | None) -> ResumePlan:
    """Return the plan for a folder that RESUME names.

    Args:
        named: The folder of a run or of one of its checkpoints.
        output_dir: OUTPUT_DIR; a folder other than the run's makes it a fork.
    """
    if not named.is_dir():
        raise RunFolderError(
            f"RESUME={str(named)!r}: no such folder. Give the folder of a run or of one of its "
            "checkpoints, or latest."
        )
    if named.is_symlink() or named.name in ("", ".."):
        # `parent` of such a path is not the parent folder.
        named = named.resolve()
    named = run_home(named)
    has_checkpoint_name = CHECKPOINT_NAME.fullmatch(named.name) is not None
    is_checkpoint = has_checkpoint_name or (named / MANIFEST).exists()
    source = named.parent if is_checkpoint else named
    if output_dir is not None and output_dir.resolve() != source.resolve():
        is_begun = _check_fork(output_dir, named)
        if is_checkpoint:
            plan = _from_checkpoint(output_dir, named, _check_resumable(named), (), fork=True)
        else:
            plan = _from_newest(source, output_dir)
        return replace(plan, is_begun=is_begun)
    if not is_checkpoint:
        return _from_newest(source, source)
    manifest = _check_resumable(named)
    skipped = _check_newest(named, manifest)
    return _from_checkpoint(source, named, manifest, skipped, fork=False)


def _check_resumable(checkpoint: Path) -> Manifest:
    """Return the manifest of a complete checkpoint that training can resume from.

    Raises:
        RunFolderError: It is damaged, or has no trainer's state.
    """
    manifest = check_checkpoint(checkpoint)
    if not any(name.startswith(f"{TRAINER_STATE}/") for name in manifest.files):
        raise RunFolderError(
            f"{checkpoint}: holds adapters but no {TRAINER_STATE}/ with the optimizer's state, so "
            "training cannot resume from it; it can be evaluated: hanabi-grpo evaluate "
            f"{checkpoint}"
        )
    return manifest


def _check_fork(target: Path, named: Path) -> bool:
    """Refuse to start a new run in a folder that holds another one.

    Args:
        target: The new run's folder.
        named: The folder that RESUME names.

    Returns:
        Whether a fork was killed there while it wrote its first files.
    """
    used = used_entries(target) if target.is_dir() else []
    if used == [_RESUME_FILE]:
        return True
    if used:
        raise RunFolderError(
            f"OUTPUT_DIR={str(target)!r}: already holds another run ({some_of(used)}), so "
            f"RESUME={named} cannot start a new one in it. Continue the run in it with "
            "RESUME=latest, or choose another OUTPUT_DIR."
        )
    return False


def _check_newest(named: Path, manifest: Manifest) -> tuple[str, ...]:
    """Refuse to continue in place from a checkpoint while newer ones are valid.

    Args:
        named: The checkpoint that RESUME names.
        manifest: Its manifest.

    Returns:
        Newer checkpoints that cannot be used, and why.
    """
    newest = find_checkpoint(named.parent, needs=TRAINER_STATE)
    if newest.manifest.step > manifest.step:
        remove = f", or remove the checkpoints after step {manifest.step} from {named.parent}"
        if holder_of(named.parent):
            # Nothing is removed from a run that is training now.
            remove = ""
        raise RunFolderError(
            f"RESUME={str(named)!r}: this run has a newer valid checkpoint, {newest.folder.name}, "
            "whose steps it would repeat in the same folder. Keep them and start a new run from "
            f"here with OUTPUT_DIR=(a new folder){remove}."
        )
    return newest.skipped


def _from_newest(source: Path, target: Path, skipped: Sequence[str] = ()) -> ResumePlan:
    """Return the plan to continue from a run's newest checkpoint.

    Args:
        source: The run that has the checkpoint.
        target: The folder that the run writes to; a folder other than `source` makes it a fork.
        skipped: Checkpoints that were tried earlier, and why they cannot be used.
    """
    newest = find_checkpoint(source, needs=TRAINER_STATE)
    return _from_checkpoint(
        target,
        newest.folder,
        newest.manifest,
        (*skipped, *newest.skipped),
        fork=target.resolve() != source.resolve(),
    )


def _from_checkpoint(
    target: Path,
    checkpoint: Path,
    manifest: Manifest,
    skipped: tuple[str, ...],
    *,
    fork: bool,
) -> ResumePlan:
    """Return the plan to continue from a checkpoint.

    Args:
        target: The folder that the run writes to.
        checkpoint: The checkpoint's folder.
        manifest: Its manifest.
        skipped: Newer checkpoints that cannot be used, and why.
        fork: Whether the checkpoint belongs to another run.
    """
    summary = f"resumes from step {manifest.step} ({checkpoint}, saved {manifest.created})"
    if fork:
        summary += f", as a new run in {target}"
    return ResumePlan(
        run_folder=target,
        checkpoint=checkpoint,
        step=manifest.step,
        skipped=skipped,
        fork=fork,
        summary=summary,
    )


def _from_zero(run_folder: Path, reason: str, skipped: Sequence[str] = ()) -> ResumePlan:
    return ResumePlan(
        run_folder=run_folder,
        summary=f"{reason}: starts at step 0 in {run_folder}",
        skipped=tuple(skipped),
    )
