"""Figures of arms: learning curves with bands, and held-out scores with errors over seeds.

A run is one observation: figures of one run say nothing about how another seed would have done.
With few seeds the intervals are wide: with three, the 95 % interval is 4.3 standard errors to each
side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.arms import Arm, Run
from hanabi_grpo.evaluation.comparison.kinds import EvaluationKind, lineup_form, url_models
from hanabi_grpo.evaluation.smoothing import recent_means
from hanabi_grpo.evaluation.tables import sampling_name
from hanabi_grpo.runs.evaluation_result import (
    EvaluationResult,
    different_messages,
    mean_figures,
)
from hanabi_grpo.runs.task_statistics import COVERAGE, Interval

MIN_SEEDS_FOR_T = 3
"""Least number of runs for which a curve gets a t interval.

With two runs, the interval is 12.7 standard errors to each side.
"""
_MIN_RUNS_FOR_ERROR = 2
_NO_SAMPLING = "scripts"
"""Stands for the sampling where no model plays."""
_MOST_DEGREES = 1e9
"""Stands for infinitely many degrees of freedom, which `stdtrit` does not take."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The line of one arm."""

    name: str
    x: NDArray[np.float64]
    """(m,), ascending: steps."""
    mean: NDArray[np.float64]
    """(m,): mean over runs of their trailing means."""
    low: NDArray[np.float64]
    """(m,): lower edge of the band; the mean itself with fewer than three runs."""
    high: NDArray[np.float64]
    """(m,): upper edge of the band."""
    num_runs: int

    @property
    def has_band(self) -> bool:
        """Whether there are enough runs for a band."""
        return self.num_runs >= MIN_SEEDS_FOR_T


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScore:
    """The evaluations of one arm."""

    name: str
    num_runs: int
    """Runs of the arm, including those without this evaluation."""
    means: tuple[float, ...]
    """Mean score of each run that was evaluated."""
    seeds: Interval
    """Mean over runs, with its error over training seeds."""
    figures: Mapping[str, float]
    """Mean over runs of each figure."""
    difference: Interval | None
    """Difference from the first arm; None for the first arm, and if that was not evaluated."""
    num_pairs: int = 0
    """Pairs of runs with the same seed; 0: the difference is unpaired, by Welch's t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One kind of evaluation of every arm."""

    kind: EvaluationKind
    example: EvaluationResult
    """One of the evaluations."""
    samplings: tuple[str, ...]
    """The different ways in which models sampled, e.g. ("greedy", "T=1"); "scripts" for none."""
    lineups: tuple[str, ...]
    """The different lineups that were evaluated, see `lineup_form`."""
    messages: Mapping[str, Sequence[str]]
    """Differences in what players were shown, see `different_messages`."""
    models: Mapping[str, Sequence[str]]
    """Differences in models behind URLs and in the longest reply, see `different_models`."""
    trained_steps: tuple[int, ...]
    """The different numbers of optimizer steps behind the evaluated players, ascending."""
    same_tasks: bool
    """Whether all runs were evaluated on the same tasks."""
    arms: tuple[ArmScore | None, ...]
    """Per arm; None where none of its runs has this evaluation."""
    names_tasks: bool = False
    """Whether `name` includes the tasks, because another kind has the same name."""

    @property
    def name(self) -> str:
        """Name in tables, e.g. "sampled (T=1)"."""
        # The name greedy.json already says how models sampled.
        name = self.kind.name
        if list(self.samplings) != [name]:
            name = f"{name} ({'; '.join(self.samplings)})"
        if self.names_tasks:
            result = self.example
            name = f"{name}, {result.preset}, {result.num_tasks} tasks of {result.suite}"
            if result.max_tokens is not None:
                name = f"{name}, replies of at most {result.max_tokens} tokens"
        return name


def over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of k figures, one per run.

    The error is s / sqrt(k), the interval has k - 1 degrees of freedom; NaN with one run.
    """
    count = len(values)
    squared_error = math.nan
    if count >= _MIN_RUNS_FOR_ERROR:
        squared_error = variance(values) / count
    return _t_interval(fmean(values), squared_error, count - 1)


def welch_difference(first: Sequence[float], other: Sequence[float]) -> Interval:
    """Return mean(other) - mean(first) of two groups of runs whose variances may differ.

    With a = s1^2 / k1 and b = s2^2 / k2 the error is sqrt(a + b), the degrees of freedom (a + b)^2
    / (a^2 / (k1 - 1) + b^2 / (k2 - 1)): B. L. Welch, The generalization of "Student's" problem when
    several different population variances are involved, Biometrika 34(1-2), 1947. With fewer than
    two runs in either group, error and interval are NaN.
    """
    difference = fmean(other) - fmean(first)
    if min(len(first), len(other)) < _MIN_RUNS_FOR_ERROR:
        return _t_interval(difference, math.nan, math.nan)
    a = variance(first) / len(first)
    b = variance(other) / len(other)
    degrees_first = len(first) - 1
    degrees_other = len(other) - 1
    denominator = a**2 / degrees_first + b**2 / degrees_other
    degrees = (a + b) ** 2 / denominator if denominator else math.inf
    return _t_interval(difference, a + b, degrees)


def paired_values(
    first: Sequence["_Score"], other: Sequence["_Score"]
) -> list[tuple[float, float]]:
    """Return the scores of two arms seed by seed; [] if their seeds differ.

    Every run must have a partner: the mean of the differences is then the difference of the means.
    """
    seeds = [{score.seed for score in scores} for scores in (first, other)]
    is_paired = seeds[0] == seeds[1] and None not in seeds[0]
    if not is_paired or len(first) != len(seeds[0]) or len(other) != len(seeds[1]):
        return []
    means = {score.seed: score.mean for score in other}
    return [(score.mean, means[score.seed]) for score in first]


def paired_by_seed(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the mean of other - first over pairs of runs of one seed.

    What a seed draws for both arms, such as adapters and tasks, cancels. The error is s / sqrt(k)
    of the k differences, the interval Student's with k - 1 degrees of freedom; NaN with one pair.
    """
    return over_seeds([other - first for first, other in pairs])


def arm_curve(arm: Arm, end: float, window: int) -> Curve:
    """Return an arm's curve of trailing means.

    Each run is smoothed separately and interpolated linearly at the steps of all runs of its arm.
    With three runs or more, the band is the pointwise 95 % t interval of the mean over runs.

    Args:
        arm: The arm.
        end: Last step of the curve, which every run has reached.
        window: Steps of a trailing mean.

    Raises:
        SettingsError: A run begins after `end`.
    """
    latest = max(arm.runs, key=lambda run: float(run.x[0]))
    start = float(latest.x[0])
    if start > end:
        raise SettingsError(
            f"arm {arm.name!r}: {latest.folder} begins at step {start:g}, but the shortest run "
            f"ends at step {end:g}; leave one of them out."
        )
    all_steps = np.concatenate([run.x for run in arm.runs])
    steps = np.unique(all_steps)
    steps = steps[(steps >= start) & (steps <= end)]
    lines = []
    for run in arm.runs:
        is_kept = run.x <= end
        smoothed = recent_means(run.x[is_kept].tolist(), run.scores[is_kept].tolist(), window)
        lines.append(np.interp(steps, run.x[is_kept], smoothed))
    # (runs, steps)
    values = np.stack(lines)
    num_runs = len(lines)
    mean = values.mean(axis=0)
    half_width = np.zeros(len(steps))
    if num_runs >= MIN_SEEDS_FOR_T:
        standard_error = values.std(axis=0, ddof=1) / math.sqrt(num_runs)
        half_width = _t_quantile(num_runs - 1) * standard_error
    return Curve(
        name=arm.name,
        x=steps,
        mean=mean,
        low=mean - half_width,
        high=mean + half_width,
        num_runs=num_runs,
    )


def held_out(arms: Sequence[Arm], kind: EvaluationKind) -> HeldOut:
    """Collect the evaluations of one kind; at least one run has one.

    Raises:
        SettingsError: The evaluations are of different games.
    """
    results_of_arms: list[list[EvaluationResult]] = []
    scores_of_arms: list[list[_Score]] = []
    all_results: list[EvaluationResult] = []
    for arm in arms:
        runs = [run for run in arm.runs if kind in run.evaluations]
        results = [run.evaluations[kind] for run in runs]
        results_of_arms.append(results)
        scores_of_arms.append([_Score.of(run, kind) for run in runs])
        all_results += results
    _check_same_game(arms, results_of_arms, kind)
    example = all_results[0]
    different_tasks = {(result.suite, result.seeds) for result in all_results}
    all_results_by_sampling = sorted(all_results, key=_sampling_key)
    samplings = [sampling_name(result) or _NO_SAMPLING for result in all_results_by_sampling]
    lineups = [lineup_form(result) or result.label for result in all_results]
    trained_steps = {result.trained_steps for result in all_results}
    scores: list[ArmScore | None] = []
    for number, arm in enumerate(arms):
        results = results_of_arms[number]
        baseline = scores_of_arms[0] if number else []
        own_scores = scores_of_arms[number]
        scores.append(_arm_score(arm, results, own_scores, baseline) if results else None)
    return HeldOut(
        kind=kind,
        example=example,
        samplings=tuple(dict.fromkeys(samplings)),
        lineups=tuple(dict.fromkeys(lineups)),
        messages=different_messages(all_results),
        models=different_models(all_results),
        trained_steps=tuple(sorted(trained_steps)),
        same_tasks=len(different_tasks) == 1,
        arms=tuple(scores),
    )


def different_models(results: Sequence[EvaluationResult]) -> dict[str, list[str]]:
    """Return how models behind URLs and the longest reply differ between results.

    What an earlier version did not record is left out.

    Returns:
        The different values by name, in order of appearance.

    Example:
        different_models([short, long]) == {"MAX_COMPLETION_LENGTH": ["64", "512"]}
    """
    limits = [str(result.max_tokens) for result in results if result.max_tokens is not None]
    values: dict[str, list[str]] = {"MAX_COMPLETION_LENGTH": limits}
    for result in results:
        for spec, model in url_models(result).items():
            values.setdefault(f"models behind {spec}", []).append(model)
    different = {}
    for name, found in values.items():
        distinct = list(dict.fromkeys(found))
        if len(distinct) > 1:
            # Tables are published, so only the model is named, not its address.
            different[name] = [value.rpartition("#")[2] for value in distinct]
    return different


def _sampling_key(result: EvaluationResult) -> tuple[float, float, int]:
    """Return a sort key by temperature; scripts, which have none, come first."""
    temperature = -1.0 if result.temperature is None else result.temperature
    return temperature, result.top_p, result.top_k


def _check_same_game(
    arms: Sequence[Arm], results_of_arms: Sequence[Sequence[EvaluationResult]], kind: EvaluationKind
) -> None:
    """Raise a SettingsError if two evaluations have different rules."""
    first: tuple[str, EvaluationResult] | None = None
    for arm, results in zip(arms, results_of_arms, strict=True):
        for result in results:
            if first is None:
                first = (arm.name, result)
            first_name, example = first
            if result.spec_hash != example.spec_hash:
                raise SettingsError(
                    f"{kind.title}: {first_name!r} was evaluated on {_game(example)}, "
                    f"{arm.name!r} on {_game(result)}; compare runs of the same game."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Score:
    """The score of one run."""

    seed: tuple[str, ...] | None
    """See `Run.seed`."""
    mean: float
    """Mean over tasks."""

    @classmethod
    def of(cls, run: Run, kind: EvaluationKind) -> "_Score":
        """Return the score of a run in an evaluation that it has."""
        return cls(seed=run.seed, mean=fmean(run.evaluations[kind].scores))


def _arm_score(
    arm: Arm,
    results: Sequence[EvaluationResult],
    scores: Sequence[_Score],
    baseline: Sequence[_Score],
) -> ArmScore:
    """Return the score of one arm.

    Args:
        arm: The arm.
        results: Evaluations of its runs, at least one.
        scores: Scores of these evaluations.
        baseline: Scores of the first arm's runs; empty: there is no difference.
    """
    means = [score.mean for score in scores]
    difference = None
    pairs = paired_values(baseline, scores)
    if pairs:
        difference = paired_by_seed(pairs)
    elif baseline:
        difference = welch_difference([score.mean for score in baseline], means)
    return ArmScore(
        name=arm.name,
        num_runs=len(arm.runs),
        means=tuple(means),
        seeds=over_seeds(means),
        figures=mean_figures(result.figures for result in results),
        difference=difference,
        num_pairs=len(pairs),
    )


def _game(result: EvaluationResult) -> str:
    return f"{result.env} {result.preset} with {result.num_players} players ({result.spec_hash})"


def _t_interval(mean: float, squared_error: float, degrees: float) -> Interval:
    """Return a mean with its 95 % t interval.

    Args:
        mean: The mean, or a difference.
        squared_error: Square of its standard error.
        degrees: Degrees of freedom.
    """
    error = math.sqrt(squared_error)
    half_width = _t_quantile(degrees) * error
    return Interval(
        mean=mean,
        standard_error=error,
        low=mean - half_width,
        high=mean + half_width,
    )


def _t_quantile(degrees: float) -> float:
    """Return how many standard errors a 95 % t interval reaches to each side."""
    # SciPy comes with open_spiel; its import takes a while.
    from scipy.special import stdtrit

    probability = (1 + COVERAGE) / 2
    return float(stdtrit(min(degrees, _MOST_DEGREES), probability))
