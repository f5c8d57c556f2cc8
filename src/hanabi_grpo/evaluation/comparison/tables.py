"""A comparison as tables, notes and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hanabi_grpo.evaluation.comparison.arms import SCORE, Arm, condition_notes
from hanabi_grpo.evaluation.comparison.figures import (
    ArmScore,
    Curve,
    HeldOut,
    arm_curve,
    held_out,
    over_seeds,
)
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, figure_sheets
from hanabi_grpo.evaluation.tables import (
    ATTAINABLE,
    ATTAINABLE_SOURCE,
    attainable_row,
    estimate_cells,
    game_title,
)
from hanabi_grpo.runs.evaluation_result import EvaluationResult

_ARMS = ("arm", "runs", "games/run", "seconds/run")
_HELD_OUT = ("arm", "mean", "± runs", "lowest run", "highest run")
_DIFFERENCES = ("difference", "mean ± SE over runs", "95 % interval")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Everything that is known about arms, side by side."""

    preset: str
    """Of the training games; empty where runs do not say it."""
    end: float
    """Last step that every run has reached."""
    window: int
    """Steps of the trailing mean of curves, and of the training mean."""
    metric: str
    """The figure of the training games that is compared."""
    arms: tuple[Arm, ...]
    curves: tuple[Curve, ...]
    training: tuple[tuple[float, ...], ...]
    """Per arm, per run the mean score of the last `window` steps up to `end`."""
    evaluations: tuple[HeldOut, ...]

    @property
    def label(self) -> str:
        """What the figure is called."""
        return "mean score" if self.metric == SCORE else self.metric

    @property
    def example(self) -> EvaluationResult | None:
        """An evaluation of the training games: it has the range of what is compared, and says what
        is attainable.
        """
        kinds = (
            one.example
            for one in self.evaluations
            if one.example.preset == self.preset and self.metric == SCORE
        )
        return next(kinds, None)


def compare_arms(
    preset: str, arms: Sequence[Arm], *, window: int = 10, metric: str = SCORE
) -> Comparison:
    """Compute curves, means and differences of what `load_arms` returns; see `Comparison`.

    Raises:
        SettingsError: Runs of an arm have no step in common, or evaluations are of different games.
    """
    end = min(float(run.x[-1]) for arm in arms for run in arm.runs)
    files = {file for arm in arms for run in arm.runs for file in run.evaluations}
    kinds = tuple(held_out(arms, file) for file in sorted(files))
    return Comparison(
        preset=preset,
        end=end,
        window=window,
        metric=metric,
        arms=tuple(arms),
        curves=tuple(arm_curve(arm, end, window) for arm in arms),
        training=tuple(
            tuple(float(run.scores[run.x <= end][-window:].mean()) for run in arm.runs)
            for arm in arms
        ),
        evaluations=kinds,
    )


def comparison_sheets(found: Comparison) -> list[Sheet]:
    """Return the tables: arms with every score, then per evaluation its errors, its differences and
    its figures.
    """
    kinds = found.evaluations
    arms = [_arm_row(found, number) for number in range(len(found.arms))]
    most = [kind.example.attainable for kind in kinds]
    best = [
        (
            ATTAINABLE,
            *[UNKNOWN] * len(_ARMS),
            *(UNKNOWN if one is None else f"{one:.2f}" for one in most),
        )
    ]
    what = f"{found.preset or 'training'}: {found.label} ± SE over runs"
    sheets = [
        Sheet(
            title=f"{what}; training games up to step {found.end:.0f}",
            columns=(
                *_ARMS,
                f"training, last {found.window} steps",
                *(kind.name for kind in kinds),
            ),
            groups=[arms, best] if any(one is not None for one in most) else [arms],
        )
    ]
    for kind, one in zip(kinds, most, strict=True):
        scores = [score for score in kind.arms if score is not None]
        rows: list[tuple[str, ...]] = []
        differences = []
        for score in scores:
            figures = (
                score.seeds.mean,
                score.seeds.standard_error,
                min(score.means),
                max(score.means),
            )
            rows.append((score.name + _missing(score), *map(figure, figures)))
            if gap := score.difference:
                differences.append(
                    (f"{score.name} − {found.arms[0].name}", *estimate_cells(gap, "+"))
                )
        sheets.append(
            Sheet(
                title=f"{kind.name}: "
                f"{game_title(kind.example) if kind.same_tasks else kind.example.preset}",
                columns=_HELD_OUT,
                groups=[rows] if one is None else [rows, [attainable_row(one, len(_HELD_OUT))]],
            )
        )
        if differences:
            sheets.append(
                Sheet(title=f"{kind.name}: differences", columns=_DIFFERENCES, groups=[differences])
            )
        named = [[(score.name, score.figures) for score in scores]]
        sheets += figure_sheets(
            f"{kind.name}: figures, mean over runs", "arm", named, without=kind.example.score
        )
    return sheets


def comparison_notes(found: Comparison) -> list[str]:
    """Return sentences that say what the errors cover, what was cut, and in what the runs
    differ.
    """
    notes = []
    kinds = found.evaluations
    if kinds:
        notes.append(
            "± runs: standard error over training seeds, of the runs' means: how much other seeds "
            "would change the "
            "figure; differences by Welch's t. How much other tasks would change it for single "
            "runs, evaluate says."
        )
    for kind in kinds:
        if not kind.same_tasks:
            notes.append(
                f"{kind.file}: runs were evaluated on different tasks, so ± runs holds the luck "
                "of the tasks too."
            )
        if len(kind.temperatures) > 1:
            notes.append(f"{kind.file}: runs were evaluated at different temperatures.")
    if alone := [arm.name for arm in found.arms if len(arm.runs) < 2]:
        notes.append(f"One run only, so nothing is known about other seeds: {', '.join(alone)}.")
    runs = [run for arm in found.arms for run in arm.runs]
    ends = [float(run.x[-1]) for run in runs]
    if min(ends) != max(ends):
        notes.append(
            f"Runs have {min(ends):.0f} to {max(ends):.0f} steps: curves and training means use "
            "the first "
            f"{found.end:.0f}. Games, seconds and evaluations are of whole runs."
        )
    rates = [run.num_games / run.last_step for run in runs]
    if max(rates) > 1.05 * min(rates):
        notes.append("Runs differ in games per step: at equal steps some have seen more games.")
    notes += condition_notes(found.arms)
    if any(kind.example.attainable is not None for kind in kinds):
        notes.append(ATTAINABLE_SOURCE)
    return notes


def _arm_row(found: Comparison, number: int) -> tuple[str, ...]:
    arm = found.arms[number]
    seconds = [run.seconds for run in arm.runs if run.seconds is not None]
    scores = [kind.arms[number] for kind in found.evaluations]
    return (
        arm.name,
        str(len(arm.runs)),
        f"{median(run.num_games for run in arm.runs):.0f}",
        f"{median(seconds):.0f}" if seconds else UNKNOWN,
        estimate_cells(over_seeds(found.training[number]))[0],
        *(
            UNKNOWN if score is None else estimate_cells(score.seeds)[0] + _missing(score)
            for score in scores
        ),
    )


def _missing(score: ArmScore) -> str:
    return (
        ""
        if len(score.means) == score.num_runs
        else f" ({len(score.means)} of {score.num_runs} runs)"
    )
