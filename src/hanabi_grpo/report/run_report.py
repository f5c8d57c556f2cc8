"""One run's steps, evaluations and alarms, for the terminal, the page and the charts."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.evaluation.evaluate import paired_difference
from hanabi_grpo.evaluation.exploit_results import ExploitFile, find_exploits
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet
from hanabi_grpo.evaluation.tables import (
    BEST_KNOWN,
    Pair,
    evaluation_sheets,
    reference_results,
    sampling_name,
)
from hanabi_grpo.report.charts.run import Point, RunPictures
from hanabi_grpo.report.gains import Gain, find_gain, trained_pairs
from hanabi_grpo.report.played import has_rivals, run_setup
from hanabi_grpo.report.run_views.run_watch import RunState, read_run
from hanabi_grpo.report.versus import versus_lead
from hanabi_grpo.runs.alarms import Reading
from hanabi_grpo.runs.evaluation_files import StoredEvaluation, find_evaluations
from hanabi_grpo.runs.evaluation_result import EvaluationResult, different_messages
from hanabi_grpo.runs.history import read_whole_history, trained_presets
from hanabi_grpo.runs.run_folder import recorded_settings, run_home
from hanabi_grpo.runs.task_statistics import Estimate
from hanabi_grpo.runs.validation import validation_lines
from hanabi_grpo.texts import visible

_MOST_TASKS = 5000
"""Tasks that reference scripts play for a report; in Hanabi some seconds."""
TaskKey = tuple[str, str, tuple[int, ...]]
"""Key of evaluations of the same tasks: hash of the rules, suite and seeds."""


@dataclass(frozen=True, slots=True)
class SameTasks:
    """Evaluations of the same tasks."""

    results: list[EvaluationResult] = field(default_factory=list)
    """Results in the order of training."""
    references: list[EvaluationResult] = field(default_factory=list)
    """Reference scripts on these tasks."""
    pairs: Sequence[Pair] = ()
    """Results whose difference is what training gained in between."""
    gain: Gain | None = None
    """What training gained on these tasks; None: no two results may be compared."""
    is_own_game: bool = True
    """Whether these are tasks of a game that the run trained on."""
    is_only_game: bool = True
    """Whether it is the run's only game, so that these scores may be compared with its curve."""

    @property
    def last(self) -> EvaluationResult:
        """The result of the longest training."""
        return self.results[-1]

    @property
    def levels(self) -> dict[str, float]:
        """Mean scores to compare a curve with: the reference scripts' and the best known."""
        levels = {reference.label: reference.mean for reference in self.references}
        attainable = self.results[0].attainable
        if attainable is not None:
            levels[BEST_KNOWN] = attainable
        return levels

    @property
    def lead(self) -> str:
        """The results in one line, without the references.

        An arrow appears only if the same seats were evaluated at step 0 and later; otherwise
        each lineup is named, with its number of training steps.

        E.g. "held-out 1.10 → 2.27 of 4", or "held-out of 4: served (step 15) 1.65; served,iggi
        (step 15) 2.26"; the game is named unless it is the only one that the run trained on.
        """
        greatest = self.last.score_range[1]
        held_out = "held-out"
        if not self.is_only_game:
            held_out += f" on {self.last.preset} with {self.last.num_players} players"
        if self.gain is None:
            parts = []
            for name, result in self.named.items():
                parts.append(f"{name} {result.mean:.2f}")
            return f"{held_out} of {greatest:g}: {'; '.join(parts)}"
        before, after = self.gain.before, self.gain.after
        partners = f" with {', '.join(self.gain.partners)}" if self.gain.partners else ""
        steps = ""
        if after.trained_steps != self.last.trained_steps:
            steps = f" at step {after.trained_steps}"
        return f"{held_out}{partners} {before.mean:.2f} → {after.mean:.2f} of {greatest:g}{steps}"

    @property
    def named(self) -> dict[str, EvaluationResult]:
        """The results by name, e.g. "served,iggi (step 15)", in the order of training."""
        samplings = {sampling_name(result) for result in self.results} - {""}
        named = {}
        for result in self.results:
            facts = []
            if result.trained_steps:
                facts.append(f"step {result.trained_steps}")
            if len(samplings) > 1 and result.temperature is not None:
                facts.append(sampling_name(result))
            name = f"{result.label} ({', '.join(facts)})" if facts else result.label
            named[name] = result
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, read once."""

    folder: Path
    """The folder, as given on the command line."""
    state: RunState
    evaluations: Sequence[SameTasks]
    """Evaluations by tasks: those of the run's own game first, and of the longest training."""
    notes: Sequence[str]
    """Notes about what could not be read."""
    exploits: Sequence[ExploitFile] = ()
    """What `exploit` measured of the run."""

    @property
    def validation_lines(self) -> list[str]:
        """A line for each curve that the run was validated on; empty where there is none.

        E.g. "validation: best 2.310 ± 0.050 at step 30, last 2.200 ± 0.050 at step 50".
        """
        return validation_lines(self.state.validations)

    @property
    def lead(self) -> str:
        """The result in one line; "" where there is none.

        E.g. "held-out 1.10 → 2.27 of 4; hint-bot 2.63; best known 3.97". Where the players play
        against each other, the mean score says nothing: the line has their exploitability, or the
        share of games that they won from each seat.
        """
        if self.is_versus:
            exploits = []
            for exploit in self.exploits:
                # A lower bound beside exact figures would look like one of them.
                if self._is_of_own_game(exploit) and not exploit.is_bound:
                    exploits.append(exploit)
            return versus_lead(self.state.rows, exploits, self.results, self.gain)
        if not self.evaluations:
            return ""
        group = self.evaluations[0]
        lead = group.lead
        for name, mean in group.levels.items():
            lead += f"; {name} {mean:.2f}"
        return lead

    def _is_of_own_game(self, exploit: ExploitFile) -> bool:
        """Tell whether something was measured in the game that the run trained on."""
        _, presets = _trained_games(self.state.settings, self.state.rows)
        return not exploit.preset or not presets or exploit.preset in presets

    @property
    def is_versus(self) -> bool:
        """Whether the run's players play against each other, so that they have no common score."""
        return has_rivals(self.state.settings, trained_presets(self.state.rows))

    @property
    def results(self) -> list[EvaluationResult]:
        """The evaluations that the run is judged by: of the tasks of the first group."""
        return self.evaluations[0].results if self.evaluations else []

    @property
    def gain(self) -> Gain | None:
        """What training gained on these tasks."""
        return self.evaluations[0].gain if self.evaluations else None

    @property
    def pictures(self) -> RunPictures:
        """The run as it is drawn."""
        levels: dict[str, float] = {}
        points: list[Point] = []
        lineups: dict[str, Point] = {}
        # The curve is comparable only with scores of the only game that the run trained on.
        if self.evaluations and self.evaluations[0].is_only_game:
            group = self.evaluations[0]
            levels = group.levels
            if group.gain is not None:
                points = [self._point(result) for result in group.gain.path]
            else:
                for name, result in group.named.items():
                    lineups[name] = self._point(result)
        return RunPictures(
            title=f"{self.state.name}: {len(self.state.rows)} steps",
            rows=self.state.rows,
            settings=self.state.settings,
            levels=levels,
            points=points,
            lineups=lineups,
            validations=self.state.validations,
        )

    def _point(self, result: EvaluationResult) -> Point:
        step = min(result.trained_steps, self.state.step)
        return Point(step, result.mean, result.standard_error)

    @property
    def sheets(self) -> list[Sheet]:
        """Tables of what was measured: exploitability, then the evaluations."""
        sheets = []
        roles = _roles(self.state)
        for exploit in self.exploits:
            sheets.append(_visible_sheet(exploit.sheet(roles)))
        for group in self.evaluations:
            for sheet in evaluation_sheets(group.results, group.references, pairs=group.pairs):
                sheets.append(_visible_sheet(sheet))
        return sheets

    def alarm_sheet(self, most: int | None = None) -> Sheet:
        """Return the alarms as a table, raised and nearest first.

        Args:
            most: Largest number to show, though raised ones are always shown; None: all.
        """
        readings = self.state.readings
        if most is not None:
            readings = readings[: max(most, len(self.state.raised))]
        rows = [self._alarm_row(reading) for reading in readings]
        return Sheet(
            title=f"Alarms after step {self.state.step}, raised and nearest first",
            columns=("alarm", "subject", "figure", "last 10", "threshold", "state"),
            groups=[rows] if rows else [],
            num_names=3,
        )

    def _alarm_row(self, reading: Reading) -> tuple[str, ...]:
        alarm = reading.alarm
        threshold = UNKNOWN
        if reading.level is not None:
            side = "<" if alarm.below else ">"
            threshold = f"{side} {reading.level:.3g}"
        since = self.state.raised.get(reading.key)
        return (
            alarm.name,
            visible(reading.subject),
            alarm.title,
            f"{reading.mean:.3g}",
            threshold,
            "quiet" if since is None else f"since {since}",
        )

    def shortfall(self, *, min_rise: float | None, min_sigma: float | None) -> str | None:
        """Return why the rise from step 0 to the last evaluation is too small, or None.

        Args:
            min_rise: Least rise of the mean score; None: no limit.
            min_sigma: Least rise in standard errors; None: no limit.

        Raises:
            SettingsError: No two evaluations of the same seats and tasks, at step 0 and later.
        """
        if self.gain is None:
            raise SettingsError(
                f"{self.folder}: --min-rise and --min-sigma compare two evaluations of the same "
                "seats, opponents, tasks and temperature, at step 0 and after training, but "
                f"the {len(self.results)} evaluations found have no such pair; run hanabi-grpo "
                "evaluate base to get the one before training."
            )
        rise = paired_difference(self.gain.before, self.gain.after)
        problems = []
        # NaN counts as too small.
        if min_rise is not None and not rise.mean >= min_rise:
            problems.append(
                f"the mean score rose by {rise.mean:+.3f} (at least {min_rise:+.3f} required)"
            )
        if min_sigma is not None:
            problems += _shortfall_in_errors(rise, min_sigma)
        if not problems:
            return None
        return f"the improvement on {rise.num_tasks} tasks is too small: {'; '.join(problems)}."


def _shortfall_in_errors(rise: Estimate, min_sigma: float) -> list[str]:
    """Return why a rise is less than a number of its standard errors, as a list of 0 or 1."""
    if rise.is_exact:
        # No chance is involved, so any rise is one.
        sigmas = math.copysign(math.inf, rise.mean) if rise.mean else 0.0
        if sigmas >= min_sigma:
            return []
        return [f"the rise is exactly {rise.mean:+.3f} (more than 0 required)"]
    if not rise.has_variation:
        return [f"no variation over {rise.num_tasks} tasks, so there is no standard error"]
    if rise.sigmas >= min_sigma:
        return []
    return [f"the rise is {rise.sigmas:.1f} standard errors (at least {min_sigma:g} required)"]


def _visible_sheet(sheet: Sheet) -> Sheet:
    """Return a table without control characters in its texts: labels come from files."""
    groups = []
    for group in sheet.groups:
        rows = []
        for row in group:
            rows.append([visible(cell) for cell in row])
        groups.append(rows)
    columns = tuple(map(visible, sheet.columns))
    return replace(sheet, title=visible(sheet.title), columns=columns, groups=groups)


def read_report(folder: Path) -> RunReport:
    """Read a run, which may still be in progress.

    Alarms are recomputed from the metrics in `metrics.jsonl`, so a run with other thresholds can be
    inspected.

    Args:
        folder: A run folder, or one that holds it as `train/`.

    Raises:
        SettingsError: There is no run, or it has no step, see `read_run`.
    """
    state = read_run(folder)
    starts_from_base = not state.settings.get("HANABI_START_FROM")
    evaluations, problems = evaluations_by_tasks(
        folder, state.settings, state.rows, starts_from_base=starts_from_base
    )
    return RunReport(
        folder=folder,
        state=state,
        evaluations=evaluations,
        notes=[*state.notes, *problems],
        exploits=find_exploits(folder),
    )


def levels_of(folder: Path) -> dict[str, float]:
    """Return `SameTasks.levels` of the evaluations that `report` leads with.

    {} if there are none, or if they are not of the only game that the run trained on.
    """
    home = run_home(folder)
    try:
        rows = read_whole_history(home / "metrics.jsonl").rows
    except OSError:
        rows = []
    groups, _ = evaluations_by_tasks(folder, recorded_settings(home), rows)
    return groups[0].levels if groups and groups[0].is_only_game else {}


def evaluations_by_tasks(
    folder: Path,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    starts_from_base: bool = True,
) -> tuple[list[SameTasks], list[str]]:
    """Return the evaluations of a run, and notes.

    Those of a game that the run trained on come first; among them, those of the longest training.

    If no file has the scores of the reference scripts on the tasks of the first group, the scripts
    play these tasks now.

    Args:
        folder: A run folder, or one that holds it as `train/`.
        settings: Settings of the run, by variable.
        rows: Rows of `metrics.jsonl`.
        starts_from_base: See `find_gain`.
    """
    stored = find_evaluations(folder)
    notes = [visible(problem) for problem in stored.problems]
    results = _labelled(stored.results)
    results.sort(key=lambda result: result.trained_steps)
    groups: dict[TaskKey, SameTasks] = {}
    for result in results:
        groups.setdefault(_task_key(result), SameTasks()).results.append(result)
    for key, group in groups.items():
        group.results[:] = _told_apart(group.results)
        reference_by_label = {}
        for evaluation in stored.references:
            reference = evaluation.result
            if _task_key(reference) == key:
                reference_by_label[reference.label] = reference
        for label, reference in reference_by_label.items():
            group.references.append(replace(reference, label=visible(label)))
    home = run_home(folder)
    num_players, presets = _trained_games(settings, rows)
    own_hash = _own_hash(settings)
    # A version with other hashes may have recorded the evaluations.
    has_own_rules = any(group.last.spec_hash == own_hash for group in groups.values())
    with_gains = []
    for group in groups.values():
        gain = find_gain(group.results, home, starts_from_base=starts_from_base)
        pairs = trained_pairs(group.results, home, starts_from_base=starts_from_base)
        is_own_game = not presets or group.last.preset in presets
        if num_players is not None and group.last.num_players != num_players:
            is_own_game = False
        if has_own_rules and group.last.spec_hash != own_hash:
            # Other turns, deductions or instructions: scores are not those of the run's game.
            is_own_game = False
        is_only_game = is_own_game and len(presets) <= 1
        with_gains.append(
            replace(
                group,
                gain=gain,
                pairs=pairs,
                is_own_game=is_own_game,
                is_only_game=is_only_game,
            )
        )
    ordered = sorted(
        with_gains,
        key=lambda group: (
            group.is_own_game,
            group.last.trained_steps,
            group.gain is not None,
            group.last.num_tasks,
        ),
        reverse=True,
    )
    if ordered and not ordered[0].references:
        result = ordered[0].last
        if result.num_tasks > _MOST_TASKS:
            notes.append(
                f"{result.label}: no reference scripts: {result.num_tasks} tasks are too many to "
                f"play here (at most {_MOST_TASKS}); hanabi-grpo evaluate plays them."
            )
            return ordered, notes
        try:
            ordered[0].references.extend(reference_results(result))
        except HanabiGrpoError as error:
            notes.append(visible(str(error)))
    return ordered, notes


def _trained_games(
    settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> tuple[int | None, list[str]]:
    """Return the number of players and the presets of the training games.

    Args:
        settings: Settings of the run, by variable.
        rows: Rows of `metrics.jsonl`.

    Returns:
        None and [] where they are unknown.
    """
    # A dataset has rows of any game.
    setup = None if settings.get("DATASET") else run_setup(settings)
    presets = trained_presets(rows)
    if setup is None:
        return None, presets
    return setup.spec.num_players, presets or [setup.spec.preset]


def _own_hash(settings: Mapping[str, Any]) -> str | None:
    """Return the hash of the rules of a run's game; None if a dataset's rows name its games."""
    setup = None if settings.get("DATASET") else run_setup(settings)
    return None if setup is None else setup.spec.hash


def _labelled(evaluations: Sequence[StoredEvaluation]) -> list[EvaluationResult]:
    """Return results under names that tell them apart.

    If the file's name was generated, the name is the label; if another result has the same label,
    the digest of the file's name precedes it. A file name that the user chose precedes the label,
    unless the two are equal.
    """
    labels = [evaluation.result.label for evaluation in evaluations]
    results = []
    for evaluation in evaluations:
        result = evaluation.result
        stem = evaluation.path.stem
        label = result.label
        if evaluation.is_kept and labels.count(label) > 1:
            label = f"{stem.rpartition('-')[2]}: {label}"
        elif not evaluation.is_kept and label != stem:
            label = f"{stem}: {label}"
        results.append(replace(result, label=visible(label)))
    return results


def _told_apart(results: Sequence[EvaluationResult]) -> list[EvaluationResult]:
    """Return results of the same tasks under different names.

    If models were shown different messages, the name says which; files of the same name in two
    folders are numbered.
    """
    of_models = [result for result in results if result.temperature is not None]
    fields = different_messages(of_models)
    counts: Counter[str] = Counter()
    named = []
    for result in results:
        label = result.label
        if fields and result.temperature is not None:
            facts = [f"{field} {result.env_config[field]}" for field in fields]
            label = visible(f"{label} [{', '.join(facts)}]")
        counts[label] += 1
        if counts[label] > 1:
            label = f"{label} ({counts[label]})"
        named.append(replace(result, label=label))
    return named


def _roles(state: RunState) -> tuple[str, ...]:
    """Return the names of the seats; those of two players where the game is not known."""
    setup = run_setup(state.settings)
    return ("first", "second") if setup is None else setup.spec.role_names


def _task_key(result: EvaluationResult) -> TaskKey:
    return result.spec_hash, result.suite, result.seeds
