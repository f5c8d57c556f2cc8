"""Curves of the page as an SVG's points and labels; how they look, also in dark mode, is in the page's style sheet.

Colours of the SVGs that matplotlib writes are fixed and in `style` attributes, which a strict content policy refuses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts.labels import spread
from hanabi_grpo.report.run_views.braille import bin_means
from hanabi_grpo.report.run_views.figures import shown

_SMOOTH = 9
_MOST_POINTS = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 14.0, 8.0, 20.0
_LABELS = 118.0
"""Room at the right for the names of level lines."""
_LINE = 12.0
"""Height of such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One line or area."""

    style: str
    """Class of the style sheet: "line0 thin", "line0", "area0", …"""
    points: str
    """As `points` of a polyline or polygon has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture, in units of its view box."""

    title: str
    width: int
    height: int
    areas: tuple[Shape, ...] = ()
    lines: tuple[Shape, ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()
    """Place and label."""
    y_ticks: tuple[tuple[float, str], ...] = ()
    levels: tuple[tuple[float, float, str], ...] = ()
    """Level lines: height, height of the name at the right, name."""
    legend: tuple[tuple[str, str], ...] = ()
    """Class and name."""
    summary: str = ""
    """In words, for those who do not see it."""

    @property
    def left(self) -> float:
        """Left edge of the drawing."""
        return _LEFT

    @property
    def right(self) -> float:
        """Right edge of the drawing."""
        return self.width - (_LABELS if self.levels else _RIGHT)

    @property
    def bottom(self) -> float:
        """Lower edge of the drawing."""
        return self.height - _BOTTOM


@dataclass(frozen=True, slots=True)
class _Scale:
    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    height: int
    right: float = _RIGHT

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            round(_LEFT + across * (self.width - _LEFT - self.right), 1),
            round(self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM), 1),
        )

    def ticks(self) -> tuple[tuple[tuple[float, str], ...], tuple[tuple[float, str], ...]]:
        steps = [tick for tick in nice_ticks(*self.x, 8 if self.width > 400 else 5) if tick == round(tick)]
        return (
            tuple((self.at(tick, self.y[0])[0], f"{tick:.0f}") for tick in steps),
            tuple((self.at(self.x[0], tick)[1], label) for tick, label in tick_labels(nice_ticks(*self.y, 5))),
        )


def line_chart(
    title: str,
    lines: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    *,
    levels: Mapping[str, float] | None = None,
    width: int = 1080,
    height: int = 270,
) -> Chart | None:
    """Return a chart with each line thin as it is and bold as a trailing mean; None without a value.

    Args:
        title: Heading.
        lines: By name, (steps, values).
        levels: Heights of level lines by name.
        width: Of the view box.
        height: Likewise.
    """
    found = {name: line for name, line in lines.items() if line[0]}
    if not found:
        return None
    levels = levels or {}
    every = [value for _, values in found.values() for value in values] + [*levels.values()]
    across = _range([step for steps, _ in found.values() for step in steps], 0.0)
    scale = _Scale(across, _range(every), width, height, _LABELS if levels else _RIGHT)
    shapes = []
    for number, (steps, values) in enumerate(found.values()):
        shapes.append(Shape(style=f"line{number} thin", points=_points(scale, steps, values)))
        shapes.append(Shape(style=f"line{number}", points=_points(scale, steps, trailing_mean(values, _SMOOTH))))
    x_ticks, y_ticks = scale.ticks()
    words = [f"{name} from {shown(values[0])} to {shown(values[-1])}" for name, (_, values) in found.items()]
    words += [f"{name} {shown(value)}" for name, value in levels.items()]
    return Chart(
        title=title,
        width=width,
        height=height,
        lines=tuple(shapes),
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        levels=_levels(scale, levels),
        legend=tuple((f"line{number}", name) for number, name in enumerate(found)) if len(found) > 1 else (),
        summary=f"{title}: {', '.join(words)}",
    )


def area_chart(
    title: str, steps: Sequence[int], layers: Mapping[str, Sequence[float]], *, width: int = 1080, height: int = 230
) -> Chart | None:
    """Return layers stacked from below, each a trailing mean; None without a step or with nothing above zero."""
    means = {name: trailing_mean(values, _SMOOTH) for name, values in layers.items()}
    tops = [math.fsum(values) for values in zip(*means.values(), strict=True)]
    if not steps or max(tops, default=0.0) <= 0:
        return None
    scale = _Scale(_range(steps, 0.0), (0.0, max(tops) * 1.05), width, height)
    base = [0.0] * len(steps)
    areas = []
    for number, values in enumerate(means.values()):
        top = [low + max(0.0, value) for low, value in zip(base, values, strict=True)]
        lower = _points(scale, steps, base).split(" ")
        areas.append(Shape(style=f"area{number}", points=f"{_points(scale, steps, top)} {' '.join(reversed(lower))}"))
        base = top
    x_ticks, y_ticks = scale.ticks()
    return Chart(
        title=title,
        width=width,
        height=height,
        areas=tuple(areas),
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=tuple((f"area{number}", name) for number, name in enumerate(means)),
        summary=f"{title}: {', '.join(f'{name} {shown(values[-1])} at the end' for name, values in means.items())}",
    )


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round values between two others: multiples of 1, 2 or 5 times a power of ten.

    Example:
        nice_ticks(2.48, 3.2, 5) == [2.6, 2.8, 3.0, 3.2]
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Return each tick with a label that tells it from its neighbours.

    Example:
        tick_labels([3.0, 3.005]) == [(3.0, "3.000"), (3.005, "3.005")]
    """
    gap = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    if not gap or gap < 1e-4 or max(map(abs, ticks)) >= 1e5:
        return [(tick, shown(tick)) for tick in ticks]
    digits = max(0, -math.floor(math.log10(gap) + 1e-9))
    return [(tick, f"{tick:.{digits}f}") for tick in ticks]


def _levels(scale: _Scale, levels: Mapping[str, float]) -> tuple[tuple[float, float, str], ...]:
    """Return the lines from low to high, their names moved apart where they would overlap."""
    ordered = sorted(levels.items(), key=lambda level: level[1])
    heights = [scale.at(scale.x[0], value)[1] for _, value in ordered]
    places = spread([1 - height / scale.height for height in heights], [_LINE / scale.height] * len(heights))
    return tuple(
        (height, round((1 - place) * scale.height, 1), f"{name} {value:.2f}")
        for height, place, (name, value) in zip(heights, places, ordered, strict=True)
    )


def _range(values: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    low, high = min(values), max(values)
    if not high > low:
        reach = abs(low) * 0.1 or 1.0
        return low - reach, high + reach
    return low - pad * (high - low), high + pad * (high - low)


def _points(scale: _Scale, steps: Sequence[int], values: Sequence[float]) -> str:
    xs = bin_means([float(step) for step in steps], _MOST_POINTS)
    ys = bin_means(values, _MOST_POINTS)
    if len(xs) == 1:
        # A line of one point is not seen.
        reach = 0.01 * (scale.x[1] - scale.x[0])
        xs, ys = [xs[0] - reach, xs[0] + reach], ys * 2
    return " ".join("{:g},{:g}".format(*scale.at(x, y)) for x, y in zip(xs, ys, strict=True))
