"""The pictures of one run: score, seconds of each phase, what the alarms watch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts.alarms import alarm_figure
from hanabi_grpo.report.charts.canvas import (
    COLORS,
    LEVEL,
    SMOOTH,
    add_caption,
    draw_line,
    make_figure,
    save_figure,
    tidy,
)
from hanabi_grpo.report.charts.labels import Label, write_labels
from hanabi_grpo.report.played import score_range
from hanabi_grpo.report.run_views.figures import SCORE, phases, series
from hanabi_grpo.runs.alarms import alarms_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("score", "phases", "alarms")
_BAD_REPLIES = {"illegal_per_game": ("illegal", COLORS[0]), "unparsable_per_game": ("unparsable", COLORS[1])}
_PHASE_COLORS = {"push": "#c2185b", "rollout": "#1f5fa8", "wait": "#d9a400", "recall": "#6a3d9a", "train": "#2e7d32"}
_POINT = "#c62828"
_SIZE, _HEIGHTS = (5.8, 4.5), (3.0, 1.0)
_Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An evaluation beside the curve of the training games."""

    step: int
    mean: float
    error: float
    """Standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPictures:
    """A run to draw: its rows, and what the score is held against."""

    title: str
    rows: _Rows
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By variable; they say what was played."""
    levels: Mapping[str, float] | None = None
    """Heights of level lines by name."""
    points: Sequence[Point] = ()

    def draw(self, name: str) -> "Figure":
        """Return one of `PICTURES`.

        Raises:
            SettingsError: The rows have no figures for it.
        """
        pictures: dict[str, Callable[[], Figure]] = {
            "score": self.score,
            "phases": self.phases,
            "alarms": lambda: alarm_figure(self.rows, alarms_of(self.settings), title=self.title),
        }
        return pictures[name]()

    def save_all(self, files: Mapping[str, Path]) -> dict[str, str]:
        """Draw several pictures by their name; returns why one was left out."""
        left_out = {}
        for name, path in files.items():
            try:
                figure = self.draw(name)
            except SettingsError as error:
                left_out[name] = str(error)
            else:
                save_figure(figure, path)
        return left_out

    def score(self) -> "Figure":
        """Return mean score against the step, evaluations and level lines beside it, bad replies below."""
        steps, scores = series(self.rows, SCORE)
        if not steps:
            raise SettingsError(f'no row has a "{SCORE}"; the run ended before its first step.')
        figure = make_figure(*_SIZE)
        score, bad = figure.subplots(2, 1, sharex=True, height_ratios=_HEIGHTS)
        end = draw_line(score, steps, scores, COLORS[0])
        labels = [Label(text=f"training games {end:.2f}", y=end, color=COLORS[0], bold=True)]
        for name, value in (self.levels or {}).items():
            score.axhline(value, color=LEVEL, linewidth=1.0, linestyle=(0, (1, 3)), zorder=1)
            labels.append(Label(text=f"{name} {value:.2f}", y=value, color=LEVEL))
        for point in self.points:
            score.errorbar(
                [point.step], [point.mean], yerr=[2 * point.error], fmt="o", color=_POINT, capsize=4, zorder=5
            )
        if self.points:
            last = self.points[-1].mean
            labels.append(Label(text=f"held-out deals {last:.2f}", y=last, color=_POINT, bold=True))
        heights = [*scores, *(self.levels or {}).values(), *(point.mean for point in self.points)]
        possible = score_range(self.settings)
        score.set_ylim(_limits(heights, possible))
        if min(heights) < 0:
            score.axhline(0, color=LEVEL, linewidth=0.8, zorder=1)
        share = _SIZE[1] / sum(_HEIGHTS)
        write_labels(score, labels, inches=_HEIGHTS[0] * share)
        score.set_ylabel("mean score" + (f", {_scale(possible)}" if possible else ""))
        score.set_title(self.title, loc="left", fontsize=10.5, parse_math=False)
        bad_labels = []
        for key, (name, color) in _BAD_REPLIES.items():
            at, values = series(self.rows, key)
            if at:
                end = draw_line(bad, at, values, color)
                bad_labels.append(Label(text=f"{name} {end:.2f}", y=end, color=color))
        bad.set_ylim(bottom=0)
        write_labels(bad, bad_labels, inches=_HEIGHTS[1] * share)
        bad.set_ylabel("bad replies\nper game")
        bad.set_xlabel("training step")
        points = " Points: held-out deals, ±2 standard errors." if self.points else ""
        add_caption(figure, f"Thin: each step; bold: mean of the last {SMOOTH}.{points}")
        for axes in (score, bad):
            tidy(axes)
        return figure

    def phases(self) -> "Figure":
        """Return the seconds that each step spent in each phase, stacked."""
        timed = [(int(row["step"]), found) for row in self.rows if (found := phases(row))]
        if not timed:
            raise SettingsError('no row has a "time/…"; is this the metrics.jsonl of a training?')
        steps = [step for step, _ in timed]
        names = [name for name in _PHASE_COLORS if any(name in found for _, found in timed)]
        figure = make_figure(4.4, 2.4)
        axes = figure.subplots()
        layers = [trailing_mean([found.get(name, 0.0) for _, found in timed], SMOOTH) for name in names]
        colors = [_PHASE_COLORS[name] for name in names]
        if len(steps) == 1:
            base = 0.0
            for name, layer, color in zip(names, layers, colors, strict=True):
                axes.bar(steps, layer, bottom=base, color=color, label=name, width=0.5)
                base += layer[0]
        else:
            axes.stackplot(steps, *layers, labels=names, colors=colors, alpha=0.85, linewidth=0)
            axes.set_xlim(steps[0], steps[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"seconds a step,\nmean of the last {SMOOTH}", fontsize=8)
        axes.set_xlabel("training step", fontsize=8)
        axes.tick_params(labelsize=8)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False, reverse=True)
        tidy(axes)
        return figure


def _limits(heights: Sequence[float], possible: tuple[float, float] | None) -> tuple[float, float]:
    """Return the ends of an axis that holds these heights and 0, with room, but hardly any beyond what is possible."""
    least, most = possible or (-math.inf, math.inf)
    low, high = min([0.0, *heights]), max([0.0, *heights])
    room = 0.1 * (high - low) or 1.0
    line = 0.03 * (most - least) if possible else 0.0
    return (max(low - room, least - line) if low < 0 else 0.0), (min(high + room, most + line) if high > 0 else room)


def _scale(possible: tuple[float, float]) -> str:
    least, most = possible
    return f"at most {most:g}" if least == 0 else f"{least:g} to {most:g}"


def small_figure(lines: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> "Figure":
    """Return one figure of a page's grid: a line per name, whose (steps, values) are given."""
    figure = make_figure(3.6, 1.9)
    axes = figure.subplots()
    for color, (name, (steps, values)) in zip(COLORS, lines.items(), strict=False):
        draw_line(axes, steps, values, color, bold=1.7)
        axes.plot([], [], color=color, label=name)
    if len(lines) > 1:
        figure.legend(loc="outside upper left", ncols=len(lines), fontsize=7.5, frameon=False)
    axes.tick_params(labelsize=7.5)
    tidy(axes)
    return figure
