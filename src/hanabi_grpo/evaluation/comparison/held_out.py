"""Evaluations of all runs of all arms, one kind at a time: means with errors over seeds and over deals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import fmean

import numpy as np

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.runs import Arm
from hanabi_grpo.evaluation.comparison.seeds import SeedEstimate, over_seeds, welch_difference
from hanabi_grpo.runs.deal_statistics import clustered_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult, mean_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An arm minus the first one."""

    seeds: SeedEstimate
    """Welch's, over the runs' means."""
    deals_error: float
    """Standard error over deals, paired and clustered, for these very runs; NaN without common deals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmScore:
    """The evaluations of one arm."""

    name: str
    num_runs: int
    """Runs of the arm; those without this evaluation too."""
    means: tuple[float, ...]
    """Mean score of each run that was evaluated."""
    seeds: SeedEstimate
    deals_error: float
    """Standard error over deals of the runs' mean score per deal, clustered; NaN without common deals."""
    figures: Mapping[str, float]
    """Mean over runs of each figure."""
    difference: Difference | None
    """None for the first arm, and where that was not evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One kind of evaluation of every arm."""

    file: str
    """Name of the file in each run, e.g. "sampled.json"."""
    example: EvaluationResult
    """Says game and deals."""
    temperatures: tuple[float | None, ...]
    """All that occur, None for scripts."""
    same_deals: bool
    """Whether every run played the same deals."""
    arms: tuple[ArmScore | None, ...]
    """In the order of the arms; None: no run of the arm has this evaluation."""

    @property
    def name(self) -> str:
        """What tables call it, e.g. "sampled (T=1)"."""
        heats = ["scripts" if heat is None else "greedy" if heat == 0 else f"T={heat:g}" for heat in self.temperatures]
        stem = PurePath(self.file).stem
        return stem if heats == [stem] else f"{stem} ({', '.join(heats)})"


def held_out(arms: Sequence[Arm], file: str) -> HeldOut:
    """Put the evaluations of one file name together.

    Args:
        arms: At least one run of them has it.
        file: Key of `Run.evaluations`.

    Raises:
        SettingsError: The games differ.
    """
    found = [[run.evaluations[file] for run in arm.runs if file in run.evaluations] for arm in arms]
    flat = [(arm.name, result) for arm, results in zip(arms, found, strict=True) for result in results]
    name, example = flat[0]
    for other, result in flat:
        if result.spec_hash != example.spec_hash:
            raise SettingsError(
                f"{file}: {name!r} was evaluated on {_game(example)}, {other!r} on {_game(result)}; compare runs of "
                "one game."
            )
    same_deals = all((result.suite, result.seeds) == (example.suite, example.seeds) for _, result in flat)
    clusters = np.unique(np.asarray(example.starts), return_inverse=True)[1]
    first = found[0]

    def deals_error(results: Sequence[EvaluationResult], minus: Sequence[EvaluationResult] = ()) -> float:
        if not same_deals:
            return math.nan
        per_deal, base = (np.asarray([one.scores for one in group]) for group in (results, minus or results))
        values = per_deal.mean(axis=0)
        return clustered_error(values - base.mean(axis=0) if minus else values, clusters)[1]

    def score(arm: Arm, results: Sequence[EvaluationResult]) -> ArmScore:
        means = tuple(fmean(result.scores) for result in results)
        difference = None
        if results is not first and first:
            seeds = welch_difference([fmean(result.scores) for result in first], means)
            difference = Difference(seeds=seeds, deals_error=deals_error(results, first))
        return ArmScore(
            name=arm.name,
            num_runs=len(arm.runs),
            means=means,
            seeds=over_seeds(means),
            deals_error=deals_error(results),
            figures=mean_figures([result.figures for result in results]),
            difference=difference,
        )

    heats = sorted({result.temperature for _, result in flat}, key=lambda heat: -1.0 if heat is None else heat)
    scores = tuple(score(arm, results) if results else None for arm, results in zip(arms, found, strict=True))
    return HeldOut(file=file, example=example, temperatures=tuple(heats), same_deals=same_deals, arms=scores)


def _game(result: EvaluationResult) -> str:
    return f"{result.env} {result.preset} with {result.num_players} players ({result.spec_hash})"
