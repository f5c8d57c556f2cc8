"""What arms come to: learning curves with bands, and held-out scores with errors over training
seeds.

A run is one observation: figures of one run say nothing about how another seed would have fared.
Few seeds have wide intervals (with three, the 95 % interval is 4.3 standard errors to each side),
and that is what is known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.arms import Arm
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.runs.evaluation_result import EvaluationResult, mean_figures
from hanabi_grpo.runs.task_statistics import COVERAGE, Interval

MIN_SEEDS_FOR_T = 3
"""Least runs for which a curve gets a t interval; that of two is 12.7 standard errors to each
side.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The line of one arm."""

    name: str
    x: NDArray[np.float64]
    """(m,), ascending."""
    mean: NDArray[np.float64]
    """(m,): mean over runs of their trailing means."""
    low: NDArray[np.float64]
    """(m,): lower edge of the band; the mean itself with fewer than three runs."""
    high: NDArray[np.float64]
    num_runs: int

    @property
    def has_band(self) -> bool:
        """Whether there are runs enough."""
        return self.num_runs >= MIN_SEEDS_FOR_T


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScore:
    """The evaluations of one arm."""

    name: str
    num_runs: int
    """Runs of the arm; those without this evaluation too."""
    means: tuple[float, ...]
    """Mean score of each run that was evaluated."""
    seeds: Interval
    figures: Mapping[str, float]
    """Mean over runs of each figure."""
    difference: Interval | None
    """Minus the first arm, by Welch; None for the first arm, and where that was not evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One kind of evaluation of every arm."""

    file: str
    """Name of the file in each run, e.g. "sampled.json"."""
    example: EvaluationResult
    """Says game and tasks."""
    temperatures: tuple[float | None, ...]
    """All that occur, None for scripts."""
    same_tasks: bool
    """Whether every run played the same tasks."""
    arms: tuple[ArmScore | None, ...]
    """In the order of the arms; None: no run of the arm has this evaluation."""

    @property
    def name(self) -> str:
        """What tables call it, e.g. "sampled (T=1)"."""
        heats = [
            "scripts" if heat is None else "greedy" if heat == 0 else f"T={heat:g}"
            for heat in self.temperatures
        ]
        stem = PurePath(self.file).stem
        return stem if heats == [stem] else f"{stem} ({', '.join(heats)})"


def over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean of k figures, one per run: error s / sqrt(k), k - 1 degrees of freedom; NaN
    with one run.
    """
    count = len(values)
    squared = variance(values) / count if count > 1 else math.nan
    return _estimate(fmean(values), squared, count - 1)


def welch_difference(first: Sequence[float], other: Sequence[float]) -> Interval:
    """Return mean(other) - mean(first) of two groups of runs whose variances may differ.

    With a = s1^2 / k1 and b = s2^2 / k2 the error is sqrt(a + b), the degrees of freedom (a + b)^2
    / (a^2 / (k1 - 1) + b^2 / (k2 - 1)): B. L. Welch, The generalization of "Student's" problem when
    several different population variances are involved, Biometrika 34(1-2), 1947. With fewer than
    two runs in either group, error and interval are NaN."""
    gap = fmean(other) - fmean(first)
    if min(len(first), len(other)) < 2:
        return _estimate(gap, math.nan, math.nan)
    a, b = variance(first) / len(first), variance(other) / len(other)
    weight = a**2 / (len(first) - 1) + b**2 / (len(other) - 1)
    return _estimate(gap, a + b, (a + b) ** 2 / weight if weight else math.inf)


def arm_curve(arm: Arm, end: float, window: int) -> Curve:
    """Return an arm's curve up to `end`, which every run has reached, of trailing means over
    `window` steps.

    Each run is smoothed by itself and read off at the places of all runs of its arm, linearly
    between its own. The band is the pointwise 95 % t interval of the mean over runs, from three
    runs on. SettingsError: a run begins after `end`."""
    late = max(arm.runs, key=lambda run: float(run.x[0]))
    start = float(late.x[0])
    if start > end:
        raise SettingsError(
            f"arm {arm.name!r}: {late.folder} begins at {start:g}, after {end:g}, where the "
            "shortest run ends; leave "
            "one of them out."
        )
    places = np.unique(np.concatenate([run.x for run in arm.runs]))
    places = places[(places >= start) & (places <= end)]
    lines = []
    for run in arm.runs:
        kept = run.x <= end
        lines.append(
            np.interp(places, run.x[kept], trailing_mean(run.scores[kept].tolist(), window))
        )
    values = np.stack(lines)
    mean, reach = values.mean(axis=0), np.zeros(len(places))
    if len(lines) >= MIN_SEEDS_FOR_T:
        reach = _t_reach(len(lines) - 1) * values.std(axis=0, ddof=1) / len(lines) ** 0.5
    return Curve(
        name=arm.name, x=places, mean=mean, low=mean - reach, high=mean + reach, num_runs=len(lines)
    )


def held_out(arms: Sequence[Arm], file: str) -> HeldOut:
    """Put the evaluations of one file name together, which at least one run has; SettingsError: the
    games differ.
    """
    found = [[run.evaluations[file] for run in arm.runs if file in run.evaluations] for arm in arms]
    flat = [
        (arm.name, result) for arm, results in zip(arms, found, strict=True) for result in results
    ]
    name, example = flat[0]
    for other, result in flat:
        if result.spec_hash != example.spec_hash:
            raise SettingsError(
                f"{file}: {name!r} was evaluated on {_game(example)}, {other!r} on "
                f"{_game(result)}; compare runs of "
                "one game."
            )
    same_tasks = all(
        (result.suite, result.seeds) == (example.suite, example.seeds) for _, result in flat
    )
    first = [fmean(result.scores) for result in found[0]]

    def score(arm: Arm, results: Sequence[EvaluationResult]) -> ArmScore:
        means = tuple(fmean(result.scores) for result in results)
        return ArmScore(
            name=arm.name,
            num_runs=len(arm.runs),
            means=means,
            seeds=over_seeds(means),
            figures=mean_figures([result.figures for result in results]),
            difference=welch_difference(first, means)
            if first and results is not found[0]
            else None,
        )

    heats = sorted(
        {result.temperature for _, result in flat}, key=lambda heat: -1.0 if heat is None else heat
    )
    scores = tuple(
        score(arm, results) if results else None for arm, results in zip(arms, found, strict=True)
    )
    return HeldOut(
        file=file, example=example, temperatures=tuple(heats), same_tasks=same_tasks, arms=scores
    )


def _game(result: EvaluationResult) -> str:
    return f"{result.env} {result.preset} with {result.num_players} players ({result.spec_hash})"


def _estimate(mean: float, squared_error: float, degrees: float) -> Interval:
    error = math.sqrt(squared_error)
    reach = _t_reach(degrees) * error
    return Interval(mean=mean, standard_error=error, low=mean - reach, high=mean + reach)


def _t_reach(degrees: float) -> float:
    """Return how many standard errors a 95 % t interval reaches to each side."""
    # SciPy comes with open_spiel; its import takes a while.
    from scipy.special import stdtrit

    return float(stdtrit(min(degrees, 1e9), (1 + COVERAGE) / 2))
