"""Evaluations that lie in a run folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import ATTAINABLE, evaluation_sheets, reference_results
from hanabi_grpo.runs.evaluation_result import EvaluationResult, is_result, read_result, result_of_json
from hanabi_grpo.runs.run_folder import EVALUATIONS, TRAIN
from hanabi_grpo.settings.refs import seat_adapter

_KINDS = ("results", "references")
Results = list[EvaluationResult]


@dataclass(frozen=True, slots=True)
class SameDeals:
    """Evaluations of the same deals."""

    results: Results
    """In the order of training, so that a difference says what was gained."""
    references: Results

    @property
    def levels(self) -> dict[str, float]:
        """Mean scores to hold a curve against: of the reference scripts, and what is attainable."""
        most = self.results[0].attainable
        return {one.label: one.mean for one in self.references} | ({} if most is None else {ATTAINABLE: most})

    @property
    def lead(self) -> str:
        """What the first and the last one of the last one's temperature score, e.g. "1.16 → 2.27 of 4"."""
        means = [f"{one.mean:.2f}" for one in self.of_last_temperature]
        return " → ".join([*means[:-1][:1], means[-1]]) + f" of {self.results[-1].score_range[1]:g}"

    @property
    def of_last_temperature(self) -> Results:
        """Those results that were played at the temperature of the last one."""
        return [one for one in self.results if one.temperature == self.results[-1].temperature]


def read_evaluations(run_folder: Path, files: Sequence[Path] = ()) -> tuple[Results, Results, list[str]]:
    """Return the results and the reference scripts' results in a run folder, and notes about files that do not fit.

    Looked at are `*.json` in the folder and in its `evaluations/`, and beside a folder called `train`, where
    `tools/demo.sh` leaves them; files of `evaluate --out` count, others are passed over. A label gets its file's name,
    unless that is the label. A result that was also kept in `evaluations/` is there once, by the name that a person
    gave it.

    Args:
        run_folder: Of the run.
        files: Further results of `evaluate --out`, wherever they are.

    Raises:
        SettingsError: One of `files` is no such result.
    """
    for path in files:
        read_result(path)
    beside = [run_folder.parent] if run_folder.name == TRAIN else []
    lying = [path for place in (run_folder, *beside, run_folder / EVALUATIONS) for path in sorted(place.glob("*.json"))]
    found: dict[str, Results] = {kind: [] for kind in _KINDS}
    notes = []
    for path in dict.fromkeys(one.resolve() for one in (*files, *lying)):
        for kind, data in _candidates(path):
            try:
                result = result_of_json(data)
            except ValueError as error:
                notes.append(visible(f"{path.name}: {error}"))
                continue
            plain = replace(result, label="")
            if path.parent.name != EVALUATIONS or plain not in [replace(one, label="") for one in found[kind]]:
                is_named = kind == "references" or result.label == path.stem
                label = visible(result.label if is_named else f"{path.stem}: {result.label}")
                found[kind].append(replace(result, label=label))
    return found["results"], found["references"], notes


def evaluations_by_deals(run_folder: Path, files: Sequence[Path] = ()) -> tuple[list[SameDeals], list[str]]:
    """Return the evaluations in a run folder and in files, those of the longest training first, and notes.

    Where no file has what the reference scripts score on the deals of the first ones, they play them now.
    """
    results, references, notes = read_evaluations(run_folder, files)
    groups: dict[object, SameDeals] = {}
    for result in sorted(results, key=trained_steps):
        groups.setdefault(_deals(result), SameDeals([], [])).results.append(result)
    for deals, group in groups.items():
        group.references.extend({one.label: one for one in references if _deals(one) == deals}.values())
    found = sorted(
        groups.values(), key=lambda one: (trained_steps(one.results[-1]), one.results[-1].num_deals), reverse=True
    )
    if found and not found[0].references:
        try:
            found[0].references.extend(reference_results(found[0].results[-1]))
        except HanabiGrpoError as error:
            notes.append(visible(str(error)))
    return found, notes


def evaluation_tables(groups: Sequence[SameDeals]) -> tuple[list[Sheet], list[str]]:
    """Return tables of evaluations, and notes."""
    sheets: list[Sheet] = []
    notes = []
    for group in groups:
        try:
            sheets += map(_visible, evaluation_sheets(group.results, group.references))
        except HanabiGrpoError as error:
            notes.append(visible(str(error)))
    return sheets, notes


def trained_steps(result: EvaluationResult) -> int:
    """Return the optimizer steps behind the newest adapter that sat there; 0: none did."""
    return max((found[1] for seats in result.seats for seat in seats if (found := seat_adapter(seat))), default=0)


def _candidates(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what may be evaluations in a file: one, or those in lists called "results" and "references"."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(data, dict):
        lists = {"results": [data]} if is_result(data) else {kind: data.get(kind) for kind in _KINDS}
        for kind, several in lists.items():
            for one in several if isinstance(several, list) else ():
                if is_result(one):
                    yield kind, one


def _visible(sheet: Sheet) -> Sheet:
    groups = [[[visible(cell) for cell in row] for row in group] for group in sheet.groups]
    return replace(sheet, title=visible(sheet.title), groups=groups)


def _deals(result: EvaluationResult) -> object:
    return result.spec_hash, result.suite, result.seeds
