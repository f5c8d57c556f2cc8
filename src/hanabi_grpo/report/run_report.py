"""What is known about one run: steps, evaluations and alarms; for the terminal, the page and the
pictures.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import HanabiGrpoError, RunFolderError, SettingsError
from hanabi_grpo.evaluation.evaluate import paired_difference
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import ATTAINABLE, evaluation_sheets, reference_results
from hanabi_grpo.report.charts.run import RunPictures
from hanabi_grpo.report.run_views.run_watch import RunState, read_run
from hanabi_grpo.runs.evaluation_result import EvaluationResult, is_result, result_of_json
from hanabi_grpo.runs.run_folder import EVALUATIONS, TRAIN, run_home
from hanabi_grpo.runs.validation import Validated, best_of, read_validations
from hanabi_grpo.settings.refs import seat_adapter

Results = list[EvaluationResult]


@dataclass(frozen=True, slots=True)
class SameTasks:
    """Evaluations of the same tasks."""

    results: Results
    """In the order of training, so that a difference says what was gained."""
    references: Results

    @property
    def levels(self) -> dict[str, float]:
        """Mean scores to hold a curve against: of the reference scripts, and what is attainable."""
        most = self.results[0].attainable
        return {one.label: one.mean for one in self.references} | (
            {} if most is None else {ATTAINABLE: most}
        )

    @property
    def of_last_temperature(self) -> Results:
        """Those results that were played at the temperature of the last one."""
        return [one for one in self.results if one.temperature == self.results[-1].temperature]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, read once."""

    folder: Path
    """As typed."""
    state: RunState
    evaluations: Sequence[SameTasks]
    """Those of the longest training first."""
    notes: Sequence[str]
    """What could not be read."""
    validations: Sequence[Validated] = ()
    """By step."""

    @property
    def validation(self) -> str:
        """The validations in one line, e.g. "validation: best 2.310 ± 0.050 at step 30, last …";
        "": none.
        """
        best = best_of(self.validations)
        return "" if best is None else f"validation: best {best}, last {self.validations[-1]}"

    @property
    def lead(self) -> str:
        """The result in one line, e.g. "held-out 1.10 → 2.27 of 4; hint-bot 2.63; attainable 3.78";
        "": none.
        """
        if not self.evaluations:
            return ""
        first = self.evaluations[0]
        *before, last = [f"{one.mean:.2f}" for one in first.of_last_temperature]
        levels = [f"{name} {mean:.2f}" for name, mean in first.levels.items()]
        gained = " → ".join([*before[:1], last])
        return "; ".join([f"held-out {gained} of {first.results[-1].score_range[1]:g}", *levels])

    @property
    def pictures(self) -> RunPictures:
        """The run as it is drawn."""
        first = self.evaluations[0] if self.evaluations else SameTasks([], [])
        last = self.state.step
        return RunPictures(
            title=f"{self.state.name}: {len(self.state.rows)} steps",
            rows=self.state.rows,
            settings=self.state.settings,
            levels=first.levels if first.results else {},
            points=[
                (min(_trained_steps(one), last), one.mean, one.standard_error)
                for one in first.of_last_temperature
            ],
            validations=self.validations,
        )

    @property
    def sheets(self) -> list[Sheet]:
        """Tables of the evaluations."""
        found = []
        for sheet in (
            sheet
            for one in self.evaluations
            for sheet in evaluation_sheets(one.results, one.references)
        ):
            groups = [[[visible(cell) for cell in row] for row in group] for group in sheet.groups]
            found.append(replace(sheet, title=visible(sheet.title), groups=groups))
        return found

    def alarm_sheet(self, most: int | None = None) -> Sheet:
        """Return the alarms as a table, or those of them that are raised or nearest to it: `most`,
        or all raised.
        """
        rows = []
        state = self.state
        for one in state.readings[: None if most is None else max(most, len(state.raised))]:
            level = (
                "–" if one.level is None else f"{'<' if one.alarm.below else '>'} {one.level:.3g}"
            )
            since = self.state.raised.get(one.key)
            now = "quiet" if since is None else f"since {since}"
            rows.append(
                (
                    one.alarm.name,
                    visible(one.subject),
                    one.alarm.title,
                    f"{one.mean:.3g}",
                    level,
                    now,
                )
            )
        return Sheet(
            title=f"Alarms after step {self.state.step}, raised and nearest first",
            columns=("alarm", "of", "figure", "last 10", "raised", "now"),
            groups=[rows] if rows else [],
            num_names=3,
        )

    def shortfall(self, *, min_rise: float | None, min_sigma: float | None) -> str | None:
        """Return why the rise from the first to the last evaluation is too small; None when it is
        not.

        Raises:
            SettingsError: There are no two evaluations of the same tasks.
        """
        results = self.evaluations[0].of_last_temperature if self.evaluations else []
        if len(results) < 2:
            raise SettingsError(
                f"{self.folder}: --min-rise and --min-sigma compare two evaluations of the same "
                "tasks, and there are "
                f"{len(results)}; hanabi-grpo evaluate base --out FILE makes the one before."
            )
        rise, problems = paired_difference(results[0], results[-1]), []
        if min_rise is not None and not rise.mean >= min_rise:
            problems.append(
                f"the mean score rose by {rise.mean:+.3f}, wanted at least {min_rise:+.3f}"
            )
        if min_sigma is not None and not rise.sigmas >= min_sigma:
            problems.append(
                f"the rise is {rise.sigmas:.1f} standard errors, wanted at least {min_sigma:g}"
            )
        return (
            f"not enough learnt on {rise.num_tasks} tasks: {'; '.join(problems)}."
            if problems
            else None
        )


def read_report(folder: Path) -> RunReport:
    """Read a run folder, or one that holds it as `train/`, also of a run that is going on.

    Alarms are computed anew from the figures in `metrics.jsonl`, so a run that had other thresholds
    can be looked at. Raises as `read_run`."""
    state = read_run(folder)
    found, problems = evaluations_by_tasks(run_home(folder))
    validations: list[Validated] = []
    try:
        validations = read_validations(run_home(folder))
    except RunFolderError as error:
        problems.append(visible(str(error)))
    notes = [*state.notes, *problems]
    return RunReport(
        folder=folder, state=state, evaluations=found, notes=notes, validations=validations
    )


def levels_of(folder: Path) -> dict[str, float]:
    """Return `SameTasks.levels` of the newest evaluations in a run folder; {} without any."""
    found, _ = evaluations_by_tasks(run_home(folder))
    return found[0].levels if found else {}


def read_evaluations(run_folder: Path) -> tuple[Results, Results, list[str]]:
    """Return the results and the reference scripts' results in a run folder, and notes about files
    that do not fit.

    Looked at are `*.json` in the folder and in its `evaluations/`, and beside a folder called
    `train`, where `tools/demo.sh` leaves them; what is no evaluation is skipped. A label gets its
    file's name, unless that is the label. A result that was also kept in `evaluations/` is there
    once, by the name that a person gave it."""
    beside = [run_folder.parent] if run_folder.name == TRAIN else []
    lying = [
        path
        for place in (run_folder, *beside, run_folder / EVALUATIONS)
        for path in sorted(place.glob("*.json"))
    ]
    found: dict[str, Results] = {"results": [], "references": []}
    notes = []
    for path in lying:
        for kind, data in _candidates(path):
            try:
                result = result_of_json(data)
            except ValueError as error:
                notes.append(visible(f"{path.name}: {error}"))
                continue
            plain = replace(result, label="")
            if path.parent.name != EVALUATIONS or plain not in [
                replace(one, label="") for one in found[kind]
            ]:
                is_named = kind == "references" or result.label == path.stem
                label = visible(result.label if is_named else f"{path.stem}: {result.label}")
                found[kind].append(replace(result, label=label))
    return found["results"], found["references"], notes


def evaluations_by_tasks(run_folder: Path) -> tuple[list[SameTasks], list[str]]:
    """Return the evaluations in a run folder, those of the longest training first, and notes.

    Where no file has what the reference scripts score on the tasks of the first ones, they play
    them now."""
    results, references, notes = read_evaluations(run_folder)
    groups: dict[object, SameTasks] = {}
    for result in sorted(results, key=_trained_steps):
        groups.setdefault(_tasks(result), SameTasks([], [])).results.append(result)
    for tasks, group in groups.items():
        group.references.extend(
            {one.label: one for one in references if _tasks(one) == tasks}.values()
        )
    found = sorted(
        groups.values(),
        key=lambda one: (_trained_steps(one.results[-1]), one.results[-1].num_tasks),
        reverse=True,
    )
    if found and not found[0].references:
        try:
            found[0].references.extend(reference_results(found[0].results[-1]))
        except HanabiGrpoError as error:
            notes.append(visible(str(error)))
    return found, notes


def _candidates(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what may be evaluations in a file: itself, and those in its lists "results" and
    "references".
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if is_result(data):
        yield "results", data
    for kind in ("results", "references") if isinstance(data, dict) else ():
        several = data.get(kind)
        for one in several if isinstance(several, list) else ():
            if is_result(one):
                yield kind, one


def _trained_steps(result: EvaluationResult) -> int:
    """Return the optimizer steps behind the newest adapter that sat there; 0: none did."""
    return max(
        (found[1] for seats in result.seats for seat in seats if (found := seat_adapter(seat))),
        default=0,
    )


def _tasks(result: EvaluationResult) -> object:
    return result.spec_hash, result.suite, result.seeds
