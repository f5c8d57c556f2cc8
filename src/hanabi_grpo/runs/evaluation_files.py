"""Finds every evaluation of a run; reports, comparisons, exports and artifacts all look here."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hanabi_grpo.files import MAX_EVALUATION_BYTES, read_bytes
from hanabi_grpo.runs.evaluation_result import EvaluationResult, is_result, result_of_json
from hanabi_grpo.runs.run_folder import EVALUATIONS, TRAIN, run_home

ResultRole = Literal["results", "references"]
"""Whether a lineup was evaluated, or is a reference script for comparison; keys of the document."""
_ROLES: tuple[ResultRole, ...] = ("results", "references")
_OF_THE_RUN = re.compile(
    r"(settings(-until-step-\d+)?|args|resume|restored|validation|wandb)\.json", re.ASCII
)
"""Names of a run's own documents. Other readers report damage, and ms-swift writes `args.json` in
place, so that it may be incomplete at any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """One lineup's result in a file."""

    path: Path
    """The file, which may hold several results."""
    result: EvaluationResult
    role: ResultRole
    is_kept: bool
    """Whether `evaluate` stored it in `evaluations/` under a generated name; otherwise the user
    chose the file's name."""
    is_alone: bool
    """Whether the file is about this result alone, not a list of several lineups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluations:
    """All evaluations of a run."""

    stored: tuple[StoredEvaluation, ...]
    """The results; files whose name the user chose come first, see `find_evaluations`."""
    problems: tuple[str, ...]
    """One line per result or file that cannot be read, e.g. "x.json: a score is not a finite
    number"."""

    @property
    def results(self) -> list[StoredEvaluation]:
        """The lineups that were evaluated."""
        return [stored for stored in self.stored if stored.role == "results"]

    @property
    def references(self) -> list[StoredEvaluation]:
        """The reference scripts that played the same tasks."""
        return [stored for stored in self.stored if stored.role == "references"]

    @property
    def paths(self) -> list[Path]:
        """The files that hold results of lineups, each once."""
        paths = [stored.path for stored in self.results]
        return list(dict.fromkeys(paths))


def evaluation_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders of a run's evaluations, see `find_evaluations`; they need not exist."""
    home = run_home(folder)
    parents = (home.parent,) if home.name == TRAIN else ()
    return (home, *parents, home / EVALUATIONS)


def find_evaluations(folder: Path) -> RunEvaluations:
    """Find every evaluation of a run.

    These are `*.json` files in the run folder, in its parent if that is called `train`
    (`tools/demo.sh` writes them there), and in its `evaluations/`, where `evaluate` stores the
    scores of the run's adapters. Other JSON files are skipped; a file that is not JSON is a problem
    unless it is one of the run's own documents. A result that is in `evaluations/` and also under a
    name that the user chose is returned once, under the chosen name.

    Args:
        folder: A run folder, or one that holds it as `train/`. It need not exist.
    """
    stored: list[StoredEvaluation] = []
    problems: list[str] = []
    for searched in evaluation_folders(folder):
        is_kept = searched.name == EVALUATIONS
        for path in sorted(searched.glob("*.json")):
            try:
                candidates = list(_candidates(path))
            except OSError as error:
                problems.append(f"{path.name}: cannot be read ({error.strerror})")
                continue
            except (ValueError, RecursionError) as error:
                if is_kept or not _OF_THE_RUN.fullmatch(path.name):
                    problems.append(f"{path.name}: not JSON ({error})")
                continue
            for role, data, is_alone in candidates:
                try:
                    result = result_of_json(data)
                except ValueError as error:
                    problems.append(f"{path.name}: {error}")
                    continue
                evaluation = StoredEvaluation(
                    path=path,
                    result=result,
                    role=role,
                    is_kept=is_kept,
                    is_alone=is_alone,
                )
                if not (is_kept and _is_known(evaluation, stored)):
                    stored.append(evaluation)
    return RunEvaluations(stored=tuple(stored), problems=tuple(problems))


def _is_known(evaluation: StoredEvaluation, stored: list[StoredEvaluation]) -> bool:
    """Tell whether the same result was found already, perhaps under another label."""
    unlabelled = replace(evaluation.result, label="")
    for other in stored:
        is_same_role = other.role == evaluation.role
        if is_same_role and replace(other.result, label="") == unlabelled:
            return True
    return False


def _candidates(path: Path) -> Iterator[tuple[ResultRole, dict[str, Any], bool]]:
    """Yield the objects of a file that may be evaluations.

    They are the file itself, and the objects in its lists "results" and "references".

    Yields:
        The role, the JSON object, and whether the file is about this lineup alone.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    data = json.loads(read_bytes(path, MAX_EVALUATION_BYTES))
    if not isinstance(data, dict):
        return
    if is_result(data):
        yield "results", data, True
    for role in _ROLES:
        rows = data.get(role)
        if not isinstance(rows, list):
            continue
        for row in rows:
            if is_result(row):
                yield role, row, False
