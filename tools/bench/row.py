"""One line of the table: a ratio, its target, and how it was measured."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a ratio should be.

    Example:
        Target(limit=0.9, at_least=True)     the median must be 0.9 or more
    """

    limit: float
    """The bound."""
    at_least: bool
    """True for a lower bound, False for an upper one."""

    def met_by(self, value: float) -> bool:
        """Return whether a value is finite and meets the target."""
        if not math.isfinite(value):
            return False
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g}"


def at_least(limit: float) -> Target:
    """Return the target of a ratio that should be large."""
    return Target(limit=limit, at_least=True)


def at_most(limit: float) -> Target:
    """Return the target of a ratio that should be small."""
    return Target(limit=limit, at_least=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured ratio, or the reason why there is none.

    Example:
        Row(
            id="R6b",
            name="overlapped step ÷ the longer part",
            arms=("step", "longer part"),
            ratios=(1.02, 1.05, 1.03),
            target=at_most(1.15),
            how="simulated server, games 0.30 s, learning 0.30 s",
            details={"steps": 6},
        )
    """

    id: str
    """Number, e.g. "R3", with a letter if a family has several ratios, e.g. "R3b"."""
    name: str
    """What is divided by what."""
    arms: tuple[str, str]
    """Numerator and denominator, in words."""
    ratios: tuple[float, ...] = ()
    """One per pair, without the discarded warm-up; empty if it could not be measured."""
    cpu_ratios: tuple[float, ...] = ()
    """The same for CPU seconds; empty if they are not meaningful."""
    target: Target | None = None
    """None: the figure is only reported."""
    each: bool = False
    """Whether every ratio must meet the target (ratios of different cases), else the median."""
    how: str = ""
    """One sentence: which work, which clock."""
    why_not: str = ""
    """Why there is no ratio."""
    if_missed: str = ""
    """The known cause if the target is missed."""
    details: dict[str, Any] = field(default_factory=dict)
    """Additional figures for the JSON file: counts, absolute times, parts."""

    @property
    def median(self) -> float | None:
        """Median of the ratios; None without any."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def cpu_ratio(self) -> float | None:
        """Median of the CPU ratios; None without any."""
        return statistics.median(self.cpu_ratios) if self.cpu_ratios else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """First and third quartile of the ratios; None without any."""
        return quartiles(self.ratios) if self.ratios else None

    @property
    def judged(self) -> float | None:
        """The value compared with the target: the median, or with `each` the worst ratio.

        None without a target or without a ratio.
        """
        if self.target is None or not self.ratios:
            return None
        if not self.each:
            return self.median
        for ratio in self.ratios:
            if not math.isfinite(ratio):
                return ratio
        return min(self.ratios) if self.target.at_least else max(self.ratios)

    @property
    def met(self) -> bool | None:
        """Whether `judged` meets the target; None without a target or without a ratio."""
        if self.target is None or self.judged is None:
            return None
        return self.target.met_by(self.judged)

    @property
    def shortfall(self) -> str:
        """By how much the target is missed, and why; empty if it is met."""
        if self.met is not False or self.target is None or self.judged is None:
            return ""
        missed = f"misses by {abs(self.judged - self.target.limit):.2g}"
        return f"{missed}: {self.if_missed}" if self.if_missed else missed

    def as_json(self) -> dict[str, Any]:
        """Return this row's content for the JSON file.

        A ratio that is not a finite number becomes null.
        """
        low, high = self.quartiles or (None, None)
        return {
            "id": self.id,
            "name": self.name,
            "arms": list(self.arms),
            "pairs": len(self.ratios),
            "ratios": [_finite(ratio) for ratio in self.ratios],
            "median": _finite(self.median),
            "quartiles": [_finite(low), _finite(high)],
            "cpu_ratio": _finite(self.cpu_ratio),
            "target": None if self.target is None else str(self.target),
            "judged": _finite(self.judged),
            "met": self.met,
            "how": self.how,
            "why_not": self.why_not,
            "shortfall": self.shortfall,
            "details": self.details,
        }


def not_measured(id: str, name: str, arms: tuple[str, str], target: Target | None, why: str) -> Row:
    """Return the row of a ratio that this machine or this run cannot measure.

    Args:
        id: See `Row.id`.
        name: See `Row.name`.
        arms: See `Row.arms`.
        target: See `Row.target`.
        why: Why there is no ratio.
    """
    return Row(id=id, name=name, arms=arms, target=target, why_not=why)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile, interpolated between neighbours.

    Type 7 of Hyndman and Fan (1996).

    Args:
        values: At least one.
    """
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
