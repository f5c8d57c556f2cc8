"""What a run goes on from: the plan that RESUME asks for, and the note that tells the trainer."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.checkpoints import find_checkpoint, last_saved
from hanabi_grpo.runs.manifest import (
    CHECKPOINT_NAME,
    MANIFEST,
    Manifest,
    check_checkpoint,
    spec_hashes,
)
from hanabi_grpo.runs.resume_settings import check_compatible, read_saved_settings
from hanabi_grpo.runs.run_folder import (
    holder_of,
    run_folder_name,
    run_home,
    some_of,
    used_entries,
    write_json_atomic,
)
from hanabi_grpo.runs.v1 import check_decks
from hanabi_grpo.settings import Settings

LATEST = "latest"
TRAINER_STATE = "trainer"
"""Folder in a checkpoint that holds what only a resumed trainer needs."""
_RESUME_FILE = "resume.json"
_OUTPUTS = Path("outputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """Where a run writes, and what it starts from, with a sentence on it for the terminal."""

    run_folder: Path
    """May be missing: a run that starts at step 0, or a fork."""
    summary: str
    checkpoint: Path | None = None
    """None: start at step 0."""
    step: int = 0
    """Optimizer steps behind the checkpoint."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that cannot be used, and why."""
    fork: bool = False
    """The checkpoint belongs to another run, which stays as it is; `run_folder` must be fresh."""
    spec_hashes: tuple[str, ...] = ()
    """Games that the checkpoint was trained on, as its manifest says."""


class ResumePoint(BaseModel):
    """What `resume.json` tells the trainer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: Path
    step: int = Field(ge=0)
    skipped: tuple[str, ...] = ()


def plan_resume(settings: Settings, now: datetime | None = None) -> ResumePlan | None:
    """Find what RESUME and OUTPUT_DIR ask for, None without RESUME; nothing is changed. `now` names
    a new folder.

    `latest` always has an answer, so that a supervisor may start every attempt with it: without a
    valid checkpoint the run begins at step 0.

    Raises: RunFolderError: No such folder, no valid checkpoint in the run that was named, a
        checkpoint that is damaged or without a trainer's state, an older one in place while newer
        ones are valid, or a fork into a used folder.
    """
    if settings.resume is None:
        return None
    if settings.resume == LATEST:
        if settings.output_dir is not None:
            return _latest_in(settings.output_dir)
        return _latest_of_all(settings, now or datetime.now())
    return _named(Path(settings.resume), settings.output_dir)


def write_resume(plan: ResumePlan | None, run_folder: Path) -> None:
    """Leave `resume.json` for the trainer; none for a run that starts at step 0."""
    path = run_folder / _RESUME_FILE
    if plan is None or plan.checkpoint is None:
        path.unlink(missing_ok=True)
        return
    point = ResumePoint(checkpoint=plan.checkpoint.resolve(), step=plan.step, skipped=plan.skipped)
    write_json_atomic(path, point.model_dump(mode="json"))


def read_resume(run_folder: Path) -> ResumePoint | None:
    """Return what this run starts from; None: step 0. A RunFolderError where `resume.json` cannot
    be read.
    """
    path = run_folder / _RESUME_FILE
    try:
        return ResumePoint.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise RunFolderError(
            f"{path}: not what hanabi-grpo train writes ({error}); start it again."
        ) from error


def _latest_in(run_folder: Path) -> ResumePlan:
    used = used_entries(run_folder) if run_folder.is_dir() else []
    if not used:
        return _from_zero(run_folder, f"nothing to go on from in {run_folder} yet")
    if not any(name == "settings.json" or CHECKPOINT_NAME.fullmatch(name) for name in used):
        raise RunFolderError(
            f"OUTPUT_DIR={str(run_folder)!r}: holds {some_of(used)} but neither "
            "settings.json nor a checkpoint, so it is not the folder of a run. Choose another "
            "OUTPUT_DIR."
        )
    try:
        return _from_newest(run_folder, run_folder)
    except RunFolderError as error:
        reasons = [line.strip() for line in str(error).splitlines()]
        return _from_zero(
            run_folder,
            f"no checkpoint to go on from in {run_folder}",
            tuple(reasons[1:] or reasons),
        )


def _latest_of_all(settings: Settings, now: datetime) -> ResumePlan:
    runs = [path.parent for path in _OUTPUTS.glob("*/settings.json")]
    passed: list[str] = []
    # A copy, a checkout or an editor changes the times of files, never what a manifest says.
    for run_folder in sorted(runs, key=lambda run: (last_saved(run), run.name), reverse=True):
        try:
            return _from_newest(run_folder, run_folder, passed)
        except RunFolderError as error:
            passed += [line.strip() for line in str(error).splitlines()]
    fresh = _OUTPUTS / run_folder_name(settings, now)
    return _from_zero(fresh, f"no run in {_OUTPUTS}/ has a valid checkpoint", tuple(passed))


def _named(named: Path, output_dir: Path | None) -> ResumePlan:
    if not named.is_dir():
        raise RunFolderError(
            f"RESUME={str(named)!r}: no such folder. Give the folder of a run or of one of its "
            "checkpoints, or latest."
        )
    if named.is_symlink() or named.name in ("", ".."):
        # Of these the parent's spelling is not the parent.
        named = named.resolve()
    named = run_home(named)
    is_checkpoint = (named / MANIFEST).exists() or CHECKPOINT_NAME.fullmatch(named.name) is not None
    source = named.parent if is_checkpoint else named
    fork = output_dir is not None and output_dir.resolve() != source.resolve()
    target = output_dir if output_dir is not None and fork else source
    if fork and target.is_dir() and (used := used_entries(target)):
        raise RunFolderError(
            f"OUTPUT_DIR={str(target)!r}: holds another run already ({some_of(used)}), so "
            f"RESUME={named} cannot start "
            "a new one in it. Go on with the run in it by RESUME=latest, or choose another "
            "OUTPUT_DIR."
        )
    if not is_checkpoint:
        return _from_newest(source, target)
    manifest = check_checkpoint(named)
    if not any(name.startswith(f"{TRAINER_STATE}/") for name in manifest.files):
        raise RunFolderError(
            f"{named}: holds adapters but no {TRAINER_STATE}/ with the optimizer's state, so "
            "training cannot go "
            f"on from it; it can be evaluated: hanabi-grpo evaluate {named}"
        )
    return _plan(target, named, manifest, () if fork else _newer_than(named, manifest), fork=fork)


def _newer_than(named: Path, manifest: Manifest) -> tuple[str, ...]:
    newest = find_checkpoint(named.parent, needs=TRAINER_STATE)
    if newest.manifest.step > manifest.step:
        # Of a run that goes on nothing is removed.
        living = holder_of(named.parent)
        remove = (
            ""
            if living
            else f", or remove the checkpoints after step {manifest.step} from {named.parent}"
        )
        raise RunFolderError(
            f"RESUME={str(named)!r}: this run has a newer valid checkpoint, {newest.folder.name}, "
            "and would go on "
            "beside its own later steps. Keep them and start a new run from here with "
            "OUTPUT_DIR=(a new folder)"
            f"{remove}."
        )
    return newest.skipped


def _from_newest(source: Path, target: Path, passed: list[str] | None = None) -> ResumePlan:
    found = find_checkpoint(source, needs=TRAINER_STATE)
    skipped = (*(passed or ()), *found.skipped)
    return _plan(
        target, found.folder, found.manifest, skipped, fork=target.resolve() != source.resolve()
    )


def _plan(
    target: Path, checkpoint: Path, manifest: Manifest, skipped: tuple[str, ...], *, fork: bool
) -> ResumePlan:
    new = f", as a new run in {target}" if fork else ""
    return ResumePlan(
        run_folder=target,
        checkpoint=checkpoint,
        step=manifest.step,
        skipped=skipped,
        fork=fork,
        summary=f"goes on from step {manifest.step} ({checkpoint}, saved {manifest.created}){new}",
        spec_hashes=spec_hashes(manifest.facts),
    )


def _from_zero(run_folder: Path, reason: str, skipped: tuple[str, ...] = ()) -> ResumePlan:
    return ResumePlan(
        run_folder=run_folder,
        summary=f"{reason}: starts at step 0 in {run_folder}",
        skipped=skipped,
    )


def resume_lines(resume: ResumePlan | None, settings: Settings, steps: int) -> list[str]:
    """Return what the terminal is told of a resume: from where, what was skipped, which settings
    changed.

    Raises:
        SettingsError: Settings that cannot change on the way.
    """
    if resume is None:
        return []
    lines = [f"RESUME={settings.resume}: {resume.summary}"]
    lines += [f"    skipped: {reason}" for reason in resume.skipped]
    if resume.checkpoint is not None:
        check_decks(resume.checkpoint, resume.spec_hashes, fork=resume.fork)
        saved = read_saved_settings(resume.checkpoint.parent)
        notes = check_compatible(saved, settings, fork=resume.fork)
        lines += [f"    changed since: {note}" for note in notes]
    if resume.step >= steps:
        lines.append(f"nothing left to train: step {resume.step} of {steps} is done.")
    return lines
