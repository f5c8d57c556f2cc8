"""Evaluations that lie in a run folder."""

import json
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.evaluation_result import EvaluationResult
from hanabi_grpo.replays.texts import visible
from hanabi_grpo.report import Sheet, evaluation_sheets
from hanabi_grpo.runs import EVALUATIONS, TRAIN

_KEYS = {"spec_hash", "scores", "decks", "orders"}
_Deals = tuple[str, str, tuple[int, ...]]


def read_evaluations(run_folder: Path) -> tuple[list[EvaluationResult], list[EvaluationResult], list[str]]:
    """Return the results and the reference scripts' results in a run folder, and notes about files that do not fit.

    Looked at are `*.json` in the folder and in its `evaluations/`, and beside a folder called `train`, where
    `tools/demo.sh` leaves them; files of `evaluate --out` count, others are passed over. A label gets its file's name.
    """
    beside = [run_folder.parent] if run_folder.name == TRAIN else []
    # A result that was also kept in the folder of evaluations is shown once, by the name that a person gave it.
    places = [run_folder, *beside, run_folder / EVALUATIONS]
    results: list[EvaluationResult] = []
    references: list[EvaluationResult] = []
    notes = []
    for path in [path for place in places for path in sorted(place.glob("*.json"))]:
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(data, dict):
            continue
        for kind, found in (("results", results), ("references", references)):
            single = [data] if kind == "results" and data.keys() >= _KEYS else []
            several = data.get(kind)
            for one in single or (several if isinstance(several, list) else []):
                if isinstance(one, dict) and one.keys() >= _KEYS:
                    try:
                        result = _checked(one)
                    except (ValidationError, ValueError) as error:
                        notes.append(visible(f"{path.name}: not an evaluation of this version ({_first(error)})"))
                        continue
                    others = [replace(other, label="") for other in found] if path.parent.name == EVALUATIONS else []
                    if replace(result, label="") in others:
                        continue
                    label = visible(result.label if kind == "references" else f"{path.stem}: {result.label}")
                    found.append(replace(result, label=label))
    return results, references, notes


def evaluation_tables(run_folder: Path) -> tuple[list[Sheet], list[str]]:
    """Return tables of the evaluations in a run folder, those of the same deals together, and notes."""
    results, references, notes = read_evaluations(run_folder)
    groups: dict[_Deals, list[EvaluationResult]] = {}
    for result in results:
        groups.setdefault(_deals(result), []).append(result)
    sheets: list[Sheet] = []
    for deals, group in groups.items():
        known = {one.label: one for one in references if _deals(one) == deals}
        try:
            sheets += map(_visible, evaluation_sheets(group, list(known.values())))
        except HanabiGrpoError as error:
            notes.append(visible(str(error)))
    return sheets, notes


def _visible(sheet: Sheet) -> Sheet:
    groups = [[[visible(cell) for cell in row] for row in group] for group in sheet.groups]
    return replace(sheet, title=visible(sheet.title), groups=groups)


def _checked(data: dict[str, object]) -> EvaluationResult:
    result = TypeAdapter(EvaluationResult).validate_json(json.dumps(data))
    lengths = {len(result.seeds), len(result.decks), len(result.scores), len(result.scores_kept)}
    if len(lengths) != 1 or result.num_deals < 2 or not result.orders:
        raise ValueError("seeds, decks and scores of different lengths, or fewer than two deals")
    if not result.estimate.mean == result.estimate.mean:
        raise ValueError("a score is no finite number")
    return result


def _deals(result: EvaluationResult) -> _Deals:
    return result.spec_hash, result.suite, result.seeds


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)
