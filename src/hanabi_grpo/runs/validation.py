"""`validation.json` of a run folder: how its versions did on tasks of their own, and which of them
did best.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.run_folder import run_home, write_text_atomic

FILE = "validation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """How one version did."""

    step: int
    score: float
    """Mean over tasks, one game each; over several games of score / greatest score."""
    se: float
    """Its standard error over tasks."""
    metric: str = "score/mean"
    """What training calls the same figure of its own games."""

    def __str__(self) -> str:
        return f"{self.score:.3f} ± {self.se:.3f} at step {self.step}"


def read_validations(run_folder: Path) -> list[Validated]:
    """Return the validations of a run by step, none where it made none; a RunFolderError where they
    cannot be read.
    """
    path = run_folder / FILE
    try:
        return [Validated(**row) for row in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(
            f"{path}: not what a run writes ({error}); remove it, or put it back."
        ) from error


def write_validations(run_folder: Path, rows: Sequence[Validated]) -> None:
    """Write all validations of a run."""
    write_text_atomic(run_folder / FILE, json.dumps([asdict(row) for row in rows], indent=1))


def best_of(rows: Sequence[Validated]) -> Validated | None:
    """Return the first of those with the greatest score; None before the first validation."""
    return max(rows, key=lambda row: row.score, default=None)


def best_checkpoint(run: Path) -> Path:
    """Return the checkpoint of a run (see `run_home`) that validation chose.

    A SettingsError: no such run, no validation, or no checkpoint of the version that did best.
    """
    if not run.is_dir():
        raise SettingsError(f"{run}@best: no such folder; give a run.")
    home, instead = run_home(run), f"Name {run} for its newest checkpoint, or a checkpoint-N of it."
    try:
        best = best_of(read_validations(home))
    except RunFolderError as error:
        raise SettingsError(str(error)) from error
    if best is None:
        raise SettingsError(
            f"{run}@best: validation chooses the best version, and this run made none "
            f"(HANABI_EVAL_STEPS). {instead}"
        )
    folder = home / f"checkpoint-{best.step}"
    if not folder.is_dir():
        why = "is not there" if best.step else "is of the start, which is no checkpoint"
        raise SettingsError(f"{run}@best: the version that did best ({best}) {why}. {instead}")
    return folder
