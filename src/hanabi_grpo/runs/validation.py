"""`validation.json` of a run: the scores of its versions on validation tasks, and the best one.

A run may be validated on several games and with several lineups, each a curve with a name. One of
them chooses the best version; scores of different curves are never compared.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes, write_text_atomic
from hanabi_grpo.runs.history import MAX_STEP
from hanabi_grpo.runs.manifest import checkpoints_of, read_manifest
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.texts import visible

FILE = "validation.json"
TRAINING_CURVE = "training"
"""Name of the curve of the run's own players in the training games."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The score of one version on the validation tasks."""

    step: Annotated[int, Field(ge=0, le=MAX_STEP)]
    """Optimizer steps behind the version."""
    score: Annotated[float, Field(allow_inf_nan=False)]
    """Mean over tasks, one game each; over several games, the mean of score / highest score."""
    se: float
    """Standard error of `score` over tasks."""
    metric: str = "score/mean"
    """Name of the corresponding metric of the training games."""
    curve: str = TRAINING_CURVE
    """What was validated: games, lineup or both, see `client.curves`."""
    chooses: bool = True
    """Whether the curve is the one that chooses the best version."""
    has_opponents: bool = False
    """Whether anyone other than the run's own players had a seat."""

    @property
    def metric_name(self) -> str:
        """Name of the score in `metrics.jsonl`, e.g. "validation/kuhn/score/mean"."""
        of_curve = "" if self.curve == TRAINING_CURVE else f"{self.curve}/"
        return f"validation/{of_curve}{self.metric}"

    def __str__(self) -> str:
        return f"{self.score:.3f} ± {self.se:.3f} at step {self.step}"


_VALIDATIONS = TypeAdapter(list[Validated])


def read_validations(run_folder: Path) -> list[Validated]:
    """Return the validations of a run by step; an empty list if it has none.

    Raises:
        RunFolderError: The file cannot be read.
    """
    path = run_folder / FILE
    try:
        content = read_bytes(path, MAX_DOCUMENT_BYTES)
        return _VALIDATIONS.validate_json(content, strict=True)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunFolderError(
            f"{path}: not written by a run ({reason}); remove it, or restore it."
        ) from error


def write_validations(run_folder: Path, rows: Sequence[Validated]) -> None:
    """Write all validations of a run."""
    data = [asdict(row) for row in rows]
    write_text_atomic(run_folder / FILE, json.dumps(data, indent=1))


def cut_validations(run_folder: Path, step: int) -> None:
    """Remove the validations of versions after the checkpoint of `step`, which are made again.

    A run that starts over (`step` 0) may have other settings, so it keeps none.

    Raises:
        RunFolderError: The file cannot be read.
        OSError: It cannot be written.
    """
    if step == 0:
        (run_folder / FILE).unlink(missing_ok=True)
        return
    rows = read_validations(run_folder)
    kept = [row for row in rows if row.step <= step]
    if len(kept) < len(rows):
        write_validations(run_folder, kept)


def lacks_validation(run_folder: Path, step: int, every: int) -> bool:
    """Tell whether a run ended before the validation of its last version did.

    Args:
        run_folder: The run's folder.
        step: Steps of the whole run, all of which are done.
        every: HANABI_EVAL_STEPS; 0: the run is not validated.

    Raises:
        RunFolderError: The file cannot be read.
    """
    if not every or step % every:
        return False
    rows = choosing(read_validations(run_folder))
    return all(row.step != step for row in rows)


def choosing(rows: Sequence[Validated]) -> list[Validated]:
    """Return the validations of the curve that chooses the best version."""
    return [row for row in rows if row.chooses]


def best_of(rows: Sequence[Validated]) -> Validated | None:
    """Return the first validation with the highest score on the curve that chooses.

    None before the first validation.
    """
    return max(choosing(rows), key=lambda row: row.score, default=None)


def curves_of(rows: Sequence[Validated]) -> dict[str, list[Validated]]:
    """Return the validations of each curve by its name, the one that chooses first."""
    curves: dict[str, list[Validated]] = {}
    for row in sorted(rows, key=lambda row: not row.chooses):
        curves.setdefault(row.curve, []).append(row)
    return curves


def validation_lines(rows: Sequence[Validated]) -> list[str]:
    """Return a line for each curve; an empty list if there are none.

    Example:
        ["validation: best 2.310 ± 0.050 at step 30, last 2.200 ± 0.050 at step 50"]
        ["validation training, chooses the best: best 2.310 ± …", "validation kuhn: best …"]
    """
    curves = curves_of(rows)
    is_plain = list(curves) == [TRAINING_CURVE]
    lines = []
    for name, of_curve in curves.items():
        title = "validation" if is_plain else f"validation {visible(name)}"
        if len(curves) > 1 and of_curve[-1].chooses:
            title += ", chooses the best"
        best = max(of_curve, key=lambda row: row.score)
        lines.append(f"{title}: best {best}, last {of_curve[-1]}")
    return lines


def best_checkpoint(run: Path) -> Path:
    """Return the checkpoint of a run that validation chose.

    Args:
        run: A run folder, or one that holds it as `train/`, see `run_home`.

    Raises:
        SettingsError: There is no such run, no validation, or no checkpoint of the best version.
    """
    if not run.is_dir():
        raise SettingsError(f"{run}@best: no such folder; give a run.")
    home = run_home(run)
    alternative = f"Name {run} for its newest checkpoint, or a checkpoint-N of it."
    try:
        best = best_of(read_validations(home))
    except RunFolderError as error:
        raise SettingsError(str(error)) from error
    if best is None:
        raise SettingsError(
            f"{run}@best: validation chooses the best version, but this run had none "
            f"(HANABI_EVAL_STEPS). {alternative}"
        )
    folder = home / f"checkpoint-{best.step}"
    if not folder.is_dir():
        parent = _parents_checkpoint(home, best.step)
        if parent is not None:
            return parent
        reason = "is missing" if best.step else "is the start of training, not a checkpoint"
        raise SettingsError(f"{run}@best: the best version ({best}) {reason}. {alternative}")
    return folder


def _parents_checkpoint(run_folder: Path, step: int) -> Path | None:
    """Return the checkpoint of another run with which a fork began, if it is this step's.

    A fork validates that version first, and none of its own may be better. None: the run is no
    fork, it began at another step, or the checkpoint is not on this disk.
    """
    checkpoints = checkpoints_of(run_folder)
    if not checkpoints:
        return None
    facts = read_manifest(checkpoints[max(checkpoints)]).facts
    folders = set()
    for name, start in facts.get("started_from", {}).items():
        if start["adapter"] != name or start["step"] != step:
            return None
        folders.add(Path(start["folder"]))
    if len(folders) != 1:
        return None
    [folder] = folders
    return folder if folder.is_dir() else None
