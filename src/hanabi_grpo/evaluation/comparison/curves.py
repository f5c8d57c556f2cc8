"""One learning curve per arm: the mean over its runs, with a band."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.runs import Arm, Run
from hanabi_grpo.evaluation.comparison.seeds import MIN_SEEDS_FOR_T, t_reach
from hanabi_grpo.evaluation.smoothing import trailing_mean


class Axis(StrEnum):
    """What a curve is drawn against."""

    STEPS = "steps"
    GAMES = "games"
    """Games seen, all of a step's groups together."""

    def of(self, run: Run) -> NDArray[np.float64]:
        """Return (n,) places of a run's scores."""
        return run.steps if self is Axis.STEPS else run.games


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The line of one arm."""

    name: str
    x: NDArray[np.float64]
    """(m,), ascending."""
    mean: NDArray[np.float64]
    """(m,): mean over runs of their trailing means."""
    low: NDArray[np.float64]
    """(m,): lower edge of the band; the mean itself with one run."""
    high: NDArray[np.float64]
    num_runs: int

    @property
    def band(self) -> str:
        """What the band is; empty with one run."""
        if self.num_runs < 2:
            return ""
        return "t interval" if self.num_runs >= MIN_SEEDS_FOR_T else "range"


def common_end(arms: Sequence[Arm], axis: Axis) -> float:
    """Return the last place that every run has reached."""
    return min(float(axis.of(run)[-1]) for arm in arms for run in arm.runs)


def last_mean(run: Run, axis: Axis, end: float, window: int) -> float:
    """Return the mean score of a run's last `window` steps up to `end`."""
    return float(run.scores[axis.of(run) <= end][-window:].mean())


def arm_curve(arm: Arm, axis: Axis, end: float, window: int) -> Curve:
    """Return an arm's curve.

    Each run is smoothed by itself and read off at the places of all runs of its arm, linearly between its own. The band
    is the pointwise 95 % t interval of the mean over runs from three runs on, lowest to highest with two.

    Args:
        arm: Its runs.
        axis: Places.
        end: Last place, see `common_end`.
        window: Steps of the trailing mean.

    Raises:
        SettingsError: A run begins after `end`.
    """
    start = max(float(axis.of(run)[0]) for run in arm.runs)
    if start > end:
        late = max(arm.runs, key=lambda run: float(axis.of(run)[0]))
        raise SettingsError(
            f"arm {arm.name!r}: {late.folder} begins at {axis} {start:g}, after {axis} {end:g}, where the shortest run "
            "ends; leave one of them out."
        )
    places = np.unique(np.concatenate([axis.of(run) for run in arm.runs]))
    places = places[(places >= start) & (places <= end)]
    lines = []
    for run in arm.runs:
        kept = axis.of(run) <= end
        lines.append(np.interp(places, axis.of(run)[kept], trailing_mean(run.scores[kept].tolist(), window)))
    values = np.stack(lines)
    mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    if len(lines) >= MIN_SEEDS_FOR_T:
        reach = t_reach(len(lines) - 1) * values.std(axis=0, ddof=1) / len(lines) ** 0.5
        low, high = mean - reach, mean + reach
    return Curve(name=arm.name, x=places, mean=mean, low=low, high=high, num_runs=len(lines))
