"""Evaluations of all runs of all arms, one kind at a time: means with errors over seeds and over deals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.runs import Arm
from hanabi_grpo.evaluation.comparison.seeds import SeedEstimate, over_seeds, welch_difference
from hanabi_grpo.runs.deal_statistics import clustered_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An arm minus the first one."""

    seeds: SeedEstimate
    """Welch's, over the runs' means."""
    deals_error: float
    """Standard error over deals, paired and clustered by deck, for these very runs; NaN without common deals."""


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
    """Standard error over deals of the runs' mean score per deal, clustered by deck; NaN without common deals."""
    bomb_share: float
    """Of games, mean over runs, as the next one."""
    hints_per_game: float
    difference: Difference | None
    """None for the first arm, and where that was not evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One kind of evaluation of every arm."""

    file: str
    """Name of the file in each run, e.g. "sampled.json"."""
    example: EvaluationResult
    """Says board and deals."""
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
        SettingsError: The boards differ.
    """
    found = [[run.evaluations[file] for run in arm.runs if file in run.evaluations] for arm in arms]
    flat = [(arm.name, result) for arm, results in zip(arms, found, strict=True) for result in results]
    name, example = flat[0]
    for other, result in flat:
        if result.spec_hash != example.spec_hash:
            raise SettingsError(
                f"{file}: {name!r} was evaluated on {_board(example)}, {other!r} on {_board(result)}; compare runs on "
                "one board."
            )
    same_deals = all((result.suite, result.seeds) == (example.suite, example.seeds) for _, result in flat)
    decks = np.unique(np.asarray(example.decks), return_inverse=True)[1]
    by_deal = [_per_deal(results) if same_deals and results else None for results in found]
    heats = sorted({result.temperature for _, result in flat}, key=lambda heat: -1.0 if heat is None else heat)
    scores: list[ArmScore | None] = []
    for number, (arm, results) in enumerate(zip(arms, found, strict=True)):
        if not results:
            scores.append(None)
            continue
        means = tuple(fmean(result.scores) for result in results)
        difference = None
        if number and found[0]:
            gap = _gap(by_deal[0], by_deal[number])
            difference = Difference(
                seeds=welch_difference([fmean(result.scores) for result in found[0]], means),
                deals_error=_error(gap, decks),
            )
        scores.append(
            ArmScore(
                name=arm.name,
                num_runs=len(arm.runs),
                means=means,
                seeds=over_seeds(means),
                deals_error=_error(by_deal[number], decks),
                bomb_share=fmean(result.bomb_share for result in results),
                hints_per_game=fmean(result.hints_per_turn * result.turns_per_game for result in results),
                difference=difference,
            )
        )
    return HeldOut(file=file, example=example, temperatures=tuple(heats), same_deals=same_deals, arms=tuple(scores))


def _per_deal(results: Sequence[EvaluationResult]) -> NDArray[np.float64]:
    return np.asarray([result.scores for result in results], dtype=np.float64).mean(axis=0)


def _gap(first: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if first is None or other is None else other - first


def _error(values: NDArray[np.float64] | None, decks: NDArray[np.int64]) -> float:
    return math.nan if values is None else clustered_error(values, decks)[1]


def _board(result: EvaluationResult) -> str:
    return f"{result.preset} with {result.num_players} players ({result.spec_hash})"
