"""The pictures of one run: score, seconds of each phase, what the alarms watch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts.alarms import alarm_figure
from hanabi_grpo.report.charts.canvas import (
    ALERT,
    COLORS,
    LEVEL,
    SMOOTH,
    add_caption,
    draw_level,
    draw_line,
    make_figure,
    name_lines,
    save_figure,
    tidy,
)
from hanabi_grpo.report.played import run_setup
from hanabi_grpo.report.run_views.figures import SCORE, phases, series
from hanabi_grpo.runs.alarms import alarms_of
from hanabi_grpo.runs.validation import Validated, best_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPLOITABILITY = "exploitability"
"""A metric of training, see HANABI_EXPLOIT_EVERY."""
PICTURES = ("score", "phases", "alarms")
_BAD_REPLIES = {
    "illegal_per_game": ("illegal", COLORS[0]),
    "unparsable_per_game": ("unparsable", COLORS[1]),
}
_PHASE_COLORS = {
    **{"push": "#c2185b", "rollout": "#1f5fa8", "resample": "#7fb2e5"},
    **{"wait": "#d9a400", "recall": "#6a3d9a", "train": "#2e7d32"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPictures:
    """A run to draw: its rows, and what the score is held against."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By variable; they say what was played."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Heights of level lines by name."""
    points: Sequence[tuple[int, float, float]] = ()
    """Evaluations: step, mean, standard error."""
    validations: Sequence[Validated] = ()

    def draw(self, name: str) -> "Figure":
        """Return one of `PICTURES`; a SettingsError where the rows have no figures for it."""
        if name == "alarms":
            return alarm_figure(self.rows, alarms_of(self.settings), title=self.title)
        return self._score() if name == "score" else self._phases()

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

    def _score(self) -> "Figure":
        """Return mean score, or exploitability where it was measured, against the step; bad replies
        below.
        """
        if not series(self.rows, SCORE)[0]:
            raise SettingsError(f'no row has a "{SCORE}"; the run ended before its first step.')
        figure = make_figure(4.9, 4.2)
        score, bad = figure.subplots(2, 1, sharex=True, height_ratios=(3.0, 1.0))
        measured, values = series(self.rows, EXPLOITABILITY)
        if measured:
            # What both players together earn in self-play says nothing where one wins what the
            # other loses.
            score.plot(
                measured,
                values,
                "o-",
                color=COLORS[0],
                markersize=3,
                label=f"last players {values[-1]:.3f}",
            )
            score.set_ylim(bottom=0)
            score.set_ylabel("exploitability, 0 in an equilibrium")
        else:
            self._draw_scores(score)
        score.set_title(self.title, loc="left", fontsize=10.5, parse_math=False)
        for key, (name, color) in _BAD_REPLIES.items():
            at, values = series(self.rows, key)
            if at:
                draw_line(bad, at, values, color, name=name)
        bad.set_ylim(bottom=0)
        bad.set_ylabel("bad replies\nper game")
        bad.set_xlabel("training step")
        has_bars = (self.points or self.validations) and not measured
        bars = " Bars: held-out tasks, ±2 standard errors." if has_bars else ""
        add_caption(figure, f"Thin: each step; bold: mean of the last {SMOOTH}.{bars}")
        for axes in (score, bad):
            name_lines(axes)
            tidy(axes)
        return figure

    def _draw_scores(self, score: "Axes") -> None:
        best = best_of(self.validations)
        # Several games are validated by shares of the greatest score; what else there is, is of one
        # game.
        metric = SCORE if best is None else best.metric
        levels, points = (self.levels, self.points) if metric == SCORE else ({}, ())
        steps, scores = series(self.rows, metric)
        draw_line(score, steps, scores, COLORS[0], name="training games")
        for name, value in levels.items():
            draw_level(score, name, value)
        if best is not None:
            validated = [(one.step, one.score, one.se) for one in self.validations]
            _draw_points(score, validated, COLORS[2], name="validation", form="o-", size=3)
            label, edge = f"best {best.score:.2f}, step {best.step}", "white"
            score.plot(
                best.step,
                best.score,
                "*",
                color=COLORS[2],
                mec=edge,
                markersize=13,
                zorder=6,
                label=label,
            )
        if points:
            _draw_points(score, points, ALERT, name="held-out tasks", form="o", size=6)
        score.axhline(0, color=LEVEL, linewidth=0.8, zorder=1)
        lowest = [
            *scores,
            *levels.values(),
            *(mean for _, mean, _ in points),
            *(one.score for one in self.validations),
        ]
        if min(lowest, default=0) >= 0:
            score.set_ylim(bottom=0)
        if metric != SCORE:
            score.set_ylabel("mean share of the greatest score")
            return
        setup = run_setup(self.settings)
        score.set_ylabel(
            "mean score"
            + ("" if setup is None else ", {:g} to {:g}".format(*score_range(setup.spec)))
        )

    def _phases(self) -> "Figure":
        """Return the seconds that each step spent in each phase, stacked."""
        timed = [(int(row["step"]), found) for row in self.rows if (found := phases(row))]
        if len(timed) < 2:
            raise SettingsError(
                'no two rows have a "time/…"; the run ended before its second step.'
            )
        names = [name for name in _PHASE_COLORS if any(name in found for _, found in timed)]
        layers = [
            trailing_mean([found.get(name, 0.0) for _, found in timed], SMOOTH) for name in names
        ]
        figure = make_figure(4.4, 2.4)
        axes = figure.subplots()
        axes.stackplot(
            [step for step, _ in timed],
            *layers,
            labels=names,
            colors=[_PHASE_COLORS[name] for name in names],
            alpha=0.85,
        )
        axes.margins(0)
        axes.set_ylabel(f"seconds a step,\nmean of the last {SMOOTH}", fontsize=8)
        axes.set_xlabel("training step", fontsize=8)
        axes.tick_params(labelsize=8)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False, reverse=True)
        tidy(axes)
        return figure


def _draw_points(
    axes: "Axes",
    points: Sequence[tuple[int, float, float]],
    color: str,
    *,
    name: str,
    form: str,
    size: float,
) -> None:
    places, means, errors = zip(*points, strict=True)
    axes.errorbar(
        places,
        means,
        yerr=[2 * one for one in errors],
        fmt="none",
        ecolor=color,
        capsize=size / 1.5,
    )
    axes.plot(
        places, means, form, color=color, markersize=size, zorder=5, label=f"{name} {means[-1]:.2f}"
    )


def small_figure(lines: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> "Figure":
    """Return one figure of a page's grid: a line per name, whose (steps, values) are given."""
    figure = make_figure(3.6, 1.9)
    axes = figure.subplots()
    for color, (name, (steps, values)) in zip(COLORS, lines.items(), strict=False):
        draw_line(axes, steps, values, color, width=1.7)
        axes.plot([], [], color=color, label=name)
    if len(lines) > 1:
        figure.legend(loc="outside upper left", ncols=len(lines), fontsize=7.5, frameon=False)
    axes.tick_params(labelsize=7.5)
    tidy(axes)
    return figure
