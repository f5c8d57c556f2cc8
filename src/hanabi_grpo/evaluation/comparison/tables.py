"""A comparison as tables and notes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from hanabi_grpo.evaluation.comparison.arms import SCORE, Arm, Run
from hanabi_grpo.evaluation.comparison.conditions import condition_notes
from hanabi_grpo.evaluation.comparison.figures import (
    ArmScore,
    Curve,
    HeldOut,
    arm_curve,
    held_out,
    over_seeds,
)
from hanabi_grpo.evaluation.comparison.kinds import all_kinds
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, figure_sheets
from hanabi_grpo.evaluation.tables import (
    BEST_KNOWN,
    BEST_KNOWN_SOURCE,
    best_known_row,
    estimate_cells,
    game_title,
)
from hanabi_grpo.runs.evaluation_result import EvaluationResult

_ARM_COLUMNS = ("arm", "runs", "games/run", "seconds/run")
_SCORE_COLUMNS = ("arm", "mean", "± runs", "lowest run", "highest run")
_DIFFERENCE_COLUMNS = ("difference", "mean ± SE over runs", "95 % interval", "pairs")
_SAME_GAMES_PER_STEP = 1.05
"""Ratio of games per step up to which runs count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Everything that is known about arms, side by side."""

    preset: str
    """Preset of the training games; empty where it is unknown."""
    end: float
    """Last step that every run has reached."""
    window: int
    """Steps of the trailing mean of curves, and of the training mean."""
    metric: str
    """The metric of the training games that is compared."""
    arms: tuple[Arm, ...]
    curves: tuple[Curve, ...]
    """Per arm."""
    training: tuple[tuple[float, ...], ...]
    """Per arm, per run the mean score of the last `window` steps up to `end`."""
    evaluations: tuple[HeldOut, ...]
    """Per kind of evaluation."""

    @property
    def label(self) -> str:
        """Name of the metric in tables."""
        return "mean score" if self.metric == SCORE else self.metric

    @property
    def example(self) -> EvaluationResult | None:
        """An evaluation of the training games, for range and best known score; or None."""
        if self.metric != SCORE:
            return None
        for evaluation in self.evaluations:
            if evaluation.example.preset == self.preset:
                return evaluation.example
        return None


def compare_arms(
    preset: str, arms: Sequence[Arm], *, window: int = 10, metric: str = SCORE
) -> Comparison:
    """Compute curves, means and differences.

    Args:
        preset: Preset of the training games, as `load_arms` returns it.
        arms: The arms, as `load_arms` returns them.
        window: Steps of trailing means, and of the training mean.
        metric: The metric with which the arms were loaded.

    Raises:
        SettingsError: Runs of an arm have no step in common, or evaluations are of different games.
    """
    runs = _all_runs(arms)
    end = min(_last_steps(runs))
    curves = []
    training = []
    for arm in arms:
        curves.append(arm_curve(arm, end, window))
        means = [_last_mean(run, end, window) for run in arm.runs]
        training.append(tuple(means))
    kinds = all_kinds([run.evaluations for run in runs])
    evaluations = _named_apart([held_out(arms, kind) for kind in kinds])
    return Comparison(
        preset=preset,
        end=end,
        window=window,
        metric=metric,
        arms=tuple(arms),
        curves=tuple(curves),
        training=tuple(training),
        evaluations=evaluations,
    )


def _all_runs(arms: Sequence[Arm]) -> list[Run]:
    """Return the runs of all arms."""
    runs: list[Run] = []
    for arm in arms:
        runs += arm.runs
    return runs


def _last_steps(runs: Sequence[Run]) -> list[float]:
    """Return the last step of each run that has the metric."""
    return [float(run.x[-1]) for run in runs]


def _named_apart(evaluations: Sequence[HeldOut]) -> tuple[HeldOut, ...]:
    """Return the evaluations, with the tasks appended to names that several share."""
    names = [evaluation.name for evaluation in evaluations]
    named = []
    for evaluation in evaluations:
        is_shared = names.count(evaluation.name) > 1
        named.append(replace(evaluation, names_tasks=is_shared))
    return tuple(named)


def _last_mean(run: Run, end: float, window: int) -> float:
    """Return the mean of a run's metric over its last `window` steps up to `end`.

    A metric that is measured less often has at least its last value.
    """
    is_before = run.x <= end
    steps = run.x[is_before]
    is_recent = (steps > end - window) | (steps == steps[-1])
    return float(run.scores[is_before][is_recent].mean())


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    """Return the tables: arms with every score, then those of each kind of evaluation."""
    sheets = [_arms_sheet(comparison)]
    for evaluation in comparison.evaluations:
        sheets += _evaluation_sheets(evaluation, first_arm=comparison.arms[0].name)
    return sheets


def _arms_sheet(comparison: Comparison) -> Sheet:
    """Return the table of arms with the training mean and every held-out score."""
    names = [evaluation.name for evaluation in comparison.evaluations]
    rows = [_arm_row(comparison, number) for number in range(len(comparison.arms))]
    groups = [rows]
    if _has_best_known(comparison):
        cells = [BEST_KNOWN, *[UNKNOWN] * len(_ARM_COLUMNS)]
        for evaluation in comparison.evaluations:
            attainable = evaluation.example.attainable
            cells.append(UNKNOWN if attainable is None else f"{attainable:.2f}")
        groups.append([tuple(cells)])
    return Sheet(
        title=(
            f"{comparison.preset or 'training'}: {comparison.label} ± SE over runs; training games "
            f"up to step {comparison.end:.0f}"
        ),
        columns=(*_ARM_COLUMNS, f"training, last {comparison.window} steps", *names),
        groups=groups,
    )


def _has_best_known(comparison: Comparison) -> bool:
    """Tell whether the best known mean score of any evaluation's game is known."""
    return any(evaluation.example.attainable is not None for evaluation in comparison.evaluations)


def _arm_row(comparison: Comparison, number: int) -> tuple[str, ...]:
    arm = comparison.arms[number]
    num_games = []
    seconds = []
    for run in arm.runs:
        num_games.append(run.num_games)
        if run.seconds is not None:
            seconds.append(run.seconds)
    training_cell, _ = estimate_cells(over_seeds(comparison.training[number]))
    cells = [
        arm.name,
        str(len(arm.runs)),
        f"{median(num_games):.0f}",
        f"{median(seconds):.0f}" if seconds else UNKNOWN,
        training_cell,
    ]
    for evaluation in comparison.evaluations:
        cells.append(_score_cell(evaluation.arms[number]))
    return tuple(cells)


def _score_cell(score: ArmScore | None) -> str:
    if score is None:
        return UNKNOWN
    mean_cell, _ = estimate_cells(score.seeds)
    return mean_cell + _missing_runs(score)


def _evaluation_sheets(evaluation: HeldOut, *, first_arm: str) -> list[Sheet]:
    """Return the tables of one kind of evaluation: scores, differences and figures."""
    scores = [score for score in evaluation.arms if score is not None]
    sheets = [_score_sheet(evaluation, scores)]
    differences = []
    figures = []
    for score in scores:
        figures.append((score.name, score.figures))
        if score.difference is not None:
            name = f"{score.name} − {first_arm}"
            num_pairs = str(score.num_pairs) if score.num_pairs else UNKNOWN
            differences.append((name, *estimate_cells(score.difference, "+"), num_pairs))
    if differences:
        sheet = Sheet(
            title=f"{evaluation.name}: differences",
            columns=_DIFFERENCE_COLUMNS,
            groups=[differences],
        )
        sheets.append(sheet)
    sheets += figure_sheets(
        f"{evaluation.name}: figures, mean over runs",
        "arm",
        [figures],
        without=evaluation.example.score,
    )
    return sheets


def _score_sheet(evaluation: HeldOut, scores: Sequence[ArmScore]) -> Sheet:
    example = evaluation.example
    rows = []
    for score in scores:
        figures = (
            score.seeds.mean,
            score.seeds.standard_error,
            min(score.means),
            max(score.means),
        )
        rows.append((score.name + _missing_runs(score), *map(figure, figures)))
    groups = [rows]
    if example.attainable is not None:
        groups.append([best_known_row(example.attainable, len(_SCORE_COLUMNS))])
    tasks = game_title(example) if evaluation.same_tasks else example.preset
    return Sheet(title=f"{evaluation.name}: {tasks}", columns=_SCORE_COLUMNS, groups=groups)


def _missing_runs(score: ArmScore) -> str:
    """Return how many runs were evaluated, e.g. " (2 of 3 runs)"; "" where all were."""
    num_evaluated = len(score.means)
    if num_evaluated == score.num_runs:
        return ""
    return f" ({num_evaluated} of {score.num_runs} runs)"


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return sentences about what the errors cover, what was cut off and how the runs differ."""
    notes = []
    if comparison.evaluations:
        notes.append(
            "± runs: standard error of the runs' means over training seeds, i.e. how much other "
            "seeds would change the figure. Differences between arms with the same seeds are "
            "paired by seed and use Student's t over the pairs; other differences use Welch's t, "
            "without pairs. For the error of a single run over tasks, see evaluate."
        )
    for evaluation in comparison.evaluations:
        notes += _evaluation_notes(evaluation)
    for run in _all_runs(comparison.arms):
        # Tables are published, so only the last two names of a path are shown.
        name = "/".join(run.folder.parts[-2:])
        for problem in run.problems:
            notes.append(f"{name}: {problem}; this evaluation is left out.")
    single_arms = []
    for arm in comparison.arms:
        if len(arm.runs) == 1:
            single_arms.append(arm.name)
    if single_arms:
        notes.append(f"Only one run, so there is no error over seeds: {', '.join(single_arms)}.")
    notes += _length_notes(comparison)
    notes += condition_notes(comparison.arms)
    if _has_best_known(comparison):
        notes.append(BEST_KNOWN_SOURCE)
    return notes


def _evaluation_notes(evaluation: HeldOut) -> list[str]:
    """Return how the evaluations of one kind differ from run to run."""
    title = evaluation.kind.title
    notes = []
    if not evaluation.same_tasks:
        notes.append(
            f"{title}: runs were evaluated on different tasks, so ± runs also includes the "
            "variation between tasks."
        )
    if len(evaluation.samplings) > 1:
        samplings = "; ".join(evaluation.samplings)
        notes.append(f"{title}: runs were evaluated with different sampling: {samplings}.")
    if len(evaluation.lineups) > 1:
        notes.append(
            f"{title}: runs were evaluated in different lineups: {'; '.join(evaluation.lineups)}."
        )
    for field, values in {**evaluation.messages, **evaluation.models}.items():
        notes.append(f"{title}: runs were evaluated with different {field}: {', '.join(values)}.")
    steps = evaluation.trained_steps
    if len(steps) > 1:
        notes.append(
            f"{evaluation.name}: runs were evaluated after {steps[0]} to {steps[-1]} steps of "
            "training."
        )
    return notes


def _length_notes(comparison: Comparison) -> list[str]:
    """Return notes about runs of different lengths, in steps or in games per step."""
    runs = _all_runs(comparison.arms)
    notes = []
    ends = _last_steps(runs)
    if min(ends) != max(ends):
        notes.append(
            f"Runs have {min(ends):.0f} to {max(ends):.0f} steps: curves and training means use "
            f"the first {comparison.end:.0f}. Games, seconds and evaluations cover whole runs."
        )
    # A run may have only the row of step 0.
    rates = [run.num_games / max(1, run.last_step) for run in runs]
    if max(rates) > _SAME_GAMES_PER_STEP * min(rates):
        notes.append("Runs differ in games per step: at equal steps some have played more games.")
    return notes
