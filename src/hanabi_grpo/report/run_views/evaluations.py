"""Evaluations that lie in a run folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import ATTAINABLE, evaluation_sheets, reference_results
from hanabi_grpo.runs.evaluation_result import EvaluationResult, is_result, read_result, result_of_json
from hanabi_grpo.runs.run_folder import EVALUATIONS, TRAIN
from hanabi_grpo.settings.refs import seat_adapter

_Deals = tuple[str, str, tuple[int, ...]]


def read_evaluations(
    run_folder: Path, files: Sequence[Path] = ()
) -> tuple[list[EvaluationResult], list[EvaluationResult], list[str]]:
    """Return the results and the reference scripts' results in a run folder, and notes about files that do not fit.

    Looked at are `*.json` in the folder and in its `evaluations/`, and beside a folder called `train`, where
    `tools/demo.sh` leaves them; files of `evaluate --out` count, others are passed over. A label gets its file's name,
    unless that is the label.

    Args:
        run_folder: Of the run.
        files: Further results of `evaluate --out`, wherever they are.

    Raises:
        SettingsError: One of `files` is no such result.
    """
    for path in files:
        read_result(path)
    beside = [run_folder.parent] if run_folder.name == TRAIN else []
    # A result that was also kept in the folder of evaluations is shown once, by the name that a person gave it.
    places = [run_folder, *beside, run_folder / EVALUATIONS]
    results: list[EvaluationResult] = []
    references: list[EvaluationResult] = []
    notes = []
    found_there = [path for place in places for path in sorted(place.glob("*.json"))]
    known = {path.resolve() for path in found_there}
    for path in [*(path for path in files if path.resolve() not in known), *found_there]:
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(data, dict):
            continue
        for kind, found in (("results", results), ("references", references)):
            single = [data] if kind == "results" and is_result(data) else []
            several = data.get(kind)
            for one in single or (several if isinstance(several, list) else []):
                if is_result(one):
                    try:
                        result = result_of_json(one)
                    except ValueError as error:
                        notes.append(visible(f"{path.name}: {error}"))
                        continue
                    others = [replace(other, label="") for other in found] if path.parent.name == EVALUATIONS else []
                    if replace(result, label="") in others:
                        continue
                    named = result.label if kind == "references" or result.label == path.stem else None
                    label = visible(named or f"{path.stem}: {result.label}")
                    found.append(replace(result, label=label))
    return results, references, notes


@dataclass(frozen=True, slots=True)
class SameDeals:
    """Evaluations of the same deals."""

    results: list[EvaluationResult]
    """In the order of training, so that a difference says what was gained."""
    references: list[EvaluationResult]

    @property
    def levels(self) -> dict[str, float]:
        """Mean scores to hold a curve against: of the reference scripts, and what is attainable."""
        most = self.results[0].attainable
        return {one.label: one.mean for one in self.references} | ({} if most is None else {ATTAINABLE: most})

    @property
    def lead(self) -> str:
        """What the first and the last one of the last one's temperature score, e.g. "1.16 → 2.27 of 4"."""
        first, *_, last = [*self.of_last_temperature[:1], *self.of_last_temperature]
        before = "" if first is last else f"{first.mean:.2f} → "
        return f"{before}{last.mean:.2f} of {last.score_range[1]:g}"

    @property
    def of_last_temperature(self) -> list[EvaluationResult]:
        """Those results that were played at the temperature of the last one."""
        return [one for one in self.results if one.temperature == self.results[-1].temperature]


def evaluations_by_deals(run_folder: Path, files: Sequence[Path] = ()) -> tuple[list[SameDeals], list[str]]:
    """Return the evaluations in a run folder and in files, those of the longest training first, and notes.

    Where no file has what the reference scripts score on the deals of the first ones, they play them now.
    """
    results, references, notes = read_evaluations(run_folder, files)
    groups: dict[_Deals, list[EvaluationResult]] = {}
    for result in sorted(results, key=trained_steps):
        groups.setdefault(_deals(result), []).append(result)
    found = []
    for deals, group in groups.items():
        known = {one.label: one for one in references if _deals(one) == deals}
        found.append(SameDeals(group, list(known.values())))
    found.sort(key=lambda one: (trained_steps(one.results[-1]), one.results[-1].num_deals), reverse=True)
    for one in found[:1]:
        if not one.references:
            try:
                one.references.extend(reference_results(one.results[-1]))
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


def _visible(sheet: Sheet) -> Sheet:
    groups = [[[visible(cell) for cell in row] for row in group] for group in sheet.groups]
    return replace(sheet, title=visible(sheet.title), groups=groups)


def trained_steps(result: EvaluationResult) -> int:
    """Return the optimizer steps behind the newest adapter that sat there; 0: none did."""
    return max((found[1] for seats in result.seats for seat in seats if (found := seat_adapter(seat))), default=0)


def _deals(result: EvaluationResult) -> _Deals:
    return result.spec_hash, result.suite, result.seeds
