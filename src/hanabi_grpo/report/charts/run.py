"""The charts of one run: score, seconds of each phase, metrics that alarms watch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    line_label,
    make_figure,
    name_lines,
    save_figure,
    tidy,
)
from hanabi_grpo.report.played import has_rivals, run_setup
from hanabi_grpo.report.run_views.figures import EXPLOITABILITY, SCORE, phases, series
from hanabi_grpo.runs.alarms import alarms_of
from hanabi_grpo.runs.history import trained_presets
from hanabi_grpo.runs.validation import TRAINING_CURVE, Validated, curves_of
from hanabi_grpo.texts import visible
from hanabi_grpo.types import MAX_PLAYERS, player_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORE_CHART = "score"
PHASES_CHART = "phases"
ALARMS_CHART = "alarms"
VALIDATION_CHART = "validation"
BELIEFS_CHART = "beliefs"
PICTURES = (SCORE_CHART, PHASES_CHART, ALARMS_CHART)
"""Names of the charts that every run has."""
_SCORE_COLOR = COLORS[0]
_VALIDATION_COLOR = COLORS[2]
_LINEUP_COLORS = (ALERT, COLORS[3], COLORS[1], COLORS[4])
_LINEUP_MARKERS = ("o", "s", "^", "D", "v")
_BAD_REPLIES = {
    "illegal_per_game": ("illegal", COLORS[0]),
    "unparsable_per_game": ("unparsable", COLORS[1]),
}
"""Metric to name and color."""
_PHASE_COLORS = {
    "push": "#c2185b",
    "rollout": "#1f5fa8",
    "resample": "#7fb2e5",
    "wait": "#d9a400",
    "recall": "#6a3d9a",
    "train": "#2e7d32",
}
_BELIEF_LINES = {
    "belief_bits_rules": ("by the rules alone", ":"),
    "belief_bits_exact": ("knowing the partner", "--"),
    "belief_bits": ("stated by the player", "-"),
}
"""Metric of a player to its name and the style of its line, see HANABI_BELIEFS_EVERY."""
_MOST_LEGEND_COLUMNS = 3
"""Largest number of player names side by side above a small chart."""
_SHOWN_ERRORS = 2
"""Standard errors that an error bar reaches to each side."""


class Point(NamedTuple):
    """A held-out score."""

    step: int
    mean: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPictures:
    """A run to draw: its rows, and what the score is compared with."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    """Rows of `metrics.jsonl`, by step."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By variable; they tell what was played."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Heights of level lines by name."""
    points: Sequence[Point] = ()
    """The same seats at step 0 and later, by step."""
    lineups: Mapping[str, Point] = field(default_factory=dict)
    """Evaluations that are not comparable with each other, by the name of the lineup."""
    validations: Sequence[Validated] = ()
    """By step."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of this run's charts; several validation curves add one, and so do beliefs."""
        names: tuple[str, ...] = PICTURES
        if len(curves_of(self.validations)) > 1:
            names = (*names, VALIDATION_CHART)
        if self._believers():
            names = (*names, BELIEFS_CHART)
        return names

    def draw(self, name: str) -> "Figure":
        """Return one of `names`.

        Raises:
            SettingsError: The rows have no figures for it.
        """
        if name == ALARMS_CHART:
            return alarm_figure(self.rows, alarms_of(self.settings), title=self.title)
        if name == SCORE_CHART:
            return self._draw_score_chart()
        if name == VALIDATION_CHART:
            return self._draw_validation_chart()
        if name == BELIEFS_CHART:
            return self._draw_beliefs_chart()
        return self._draw_phases_chart()

    def save_all(self, files: Mapping[str, Path]) -> dict[str, str]:
        """Draw several charts by their name.

        Returns:
            The charts that were left out, each with the reason.
        """
        left_out = {}
        for name, path in files.items():
            try:
                figure = self.draw(name)
            except SettingsError as error:
                left_out[name] = str(error)
            else:
                save_figure(figure, path)
        return left_out

    def _draw_score_chart(self) -> "Figure":
        """Draw the mean score against the step, with bad replies below.

        Exploitability takes the place of the score where it was measured: in a zero-sum game the
        players' total return in self-play is not informative.
        """
        steps, _ = series(self.rows, SCORE)
        if not steps:
            raise SettingsError(f'no row has a "{SCORE}"; the run ended before its first step.')
        figure = make_figure(4.9, 4.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.0, 1.0))
        caption = f"Thin: each step; bold: mean of the last {SMOOTH}."
        measured_steps, _ = series(self.rows, EXPLOITABILITY)
        if measured_steps:
            self._draw_exploitability(upper)
            caption = f"Top: measured exactly. Bottom: mean of the last {SMOOTH}; thin: each step."
        else:
            self._draw_scores(upper)
            if self.points or self.lineups or self.validations:
                caption += f" Bars: held-out tasks, ±{_SHOWN_ERRORS} standard errors."
        upper.set_title(self.title, loc="left", fontsize=10.5, parse_math=False)
        self._draw_bad_replies(lower)
        add_caption(figure, caption)
        for axes in (upper, lower):
            name_lines(axes)
            tidy(axes)
        return figure

    def _draw_exploitability(self, axes: "Axes") -> None:
        steps, values = series(self.rows, EXPLOITABILITY)
        label = f"last version {values[-1]:.3f}"
        axes.plot(steps, values, "o-", color=_SCORE_COLOR, markersize=3, label=label)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("exploitability, 0 in an equilibrium")

    def _draw_bad_replies(self, axes: "Axes") -> None:
        for metric, (name, color) in _BAD_REPLIES.items():
            steps, values = series(self.rows, metric)
            if steps:
                draw_line(axes, steps, values, color, name=name)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bad replies\nper game")
        axes.set_xlabel("training step")

    def _draw_scores(self, axes: "Axes") -> None:
        """Draw training scores, level lines, validations and evaluations.

        Of the validations, only the curve of the training games belongs here; others have other
        scales, or other players.
        """
        own_curve = curves_of(self.validations).get(TRAINING_CURVE, [])
        best = max(own_curve, key=lambda row: row.score, default=None)
        # Several games are validated by shares of the greatest score; levels and evaluations are
        # of one game.
        metric = SCORE if best is None else best.metric
        is_one_game = metric == SCORE
        levels = self.levels if is_one_game else {}
        points = self.points if is_one_game else ()
        lineups = self.lineups if is_one_game else {}
        steps, scores = series(self.rows, metric)
        draw_line(axes, steps, scores, _SCORE_COLOR, name=self._curve_name())
        for name, height in levels.items():
            draw_level(axes, name, height)
        validations = []
        for row in own_curve:
            validations.append(Point(row.step, row.score, row.se))
        if best is not None:
            _draw_points(
                axes,
                validations,
                _VALIDATION_COLOR,
                name="validation",
                marker="o-",
                size=3,
            )
            if best.chooses:
                _draw_star(axes, best)
        if points:
            _draw_points(axes, points, ALERT, name="held-out tasks", marker="o", size=6)
        for number, (name, point) in enumerate(lineups.items()):
            color = _LINEUP_COLORS[number % len(_LINEUP_COLORS)]
            marker = _LINEUP_MARKERS[number % len(_LINEUP_MARKERS)]
            _draw_points(axes, [point], color, name=name, marker=marker, size=6)
        axes.axhline(0, color=LEVEL, linewidth=0.8, zorder=1)
        heights = [*scores, *levels.values()]
        heights += [point.mean for point in (*points, *lineups.values(), *validations)]
        if min(heights, default=0) >= 0:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(self._score_label() if is_one_game else "mean share of the maximum score")

    @property
    def curve_caption(self) -> str:
        """What the curve of the score chart shows, in a sentence."""
        if series(self.rows, EXPLOITABILITY)[0]:
            return (
                "The curve shows what a best responder wins against the players, computed exactly; "
                "0 in an equilibrium."
            )
        if self._is_versus():
            return (
                "The curve shows the return of player_0 in sampled training games; in self-play it "
                "does not say whether the players got better."
            )
        return "The curve shows sampled training games."

    def _is_versus(self) -> bool:
        return has_rivals(self.settings, trained_presets(self.rows))

    def _curve_name(self) -> str:
        return "player_0 in training" if self._is_versus() else "training games"

    def _score_label(self) -> str:
        """Return the name of the axis, with the range where the game is known."""
        setup = run_setup(self.settings)
        if setup is None:
            return "mean return of player_0" if self._is_versus() else "mean score"
        least, greatest = score_range(setup.spec)
        if not setup.spec.has_common_score:
            return f"mean return of player_0, {least:g} to {greatest:g}"
        return f"mean score, {least:g} to {greatest:g}"

    def _believers(self) -> list[str]:
        """Return the players whose beliefs were measured."""
        believers = []
        for player in player_names(MAX_PLAYERS):
            if series(self.rows, f"{player}/belief_bits_exact")[0]:
                believers.append(player)
        return believers

    def _draw_beliefs_chart(self) -> "Figure":
        """Draw how surprising each player finds hidden cards, one panel per player."""
        believers = self._believers()
        if not believers:
            raise SettingsError("no beliefs were measured; set HANABI_BELIEFS_EVERY.")
        figure = make_figure(4.9, 0.9 + 1.7 * len(believers))
        panels = figure.subplots(len(believers), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, player) in enumerate(zip(panels, believers, strict=True)):
            for metric, (label, style) in _BELIEF_LINES.items():
                steps, values = series(self.rows, f"{player}/{metric}")
                if steps:
                    color = COLORS[number % len(COLORS)]
                    axes.plot(steps, values, style, color=color, markersize=3, label=label)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(f"{player}\nbits per card")
            name_lines(axes)
            tidy(axes)
        panels[-1].set_xlabel("training step")
        add_caption(figure, "Surprise at hidden cards at the players' turns; lower is better.")
        return figure

    def _draw_validation_chart(self) -> "Figure":
        """Draw a panel for each curve of the validations, each with its own scale."""
        curves = curves_of(self.validations)
        if len(curves) < 2:
            raise SettingsError(
                "the run was not validated on several curves; add some with HANABI_EVAL_LINEUPS "
                "or HANABI_EVAL_DATASET."
            )
        figure = make_figure(4.9, 0.9 + 1.7 * len(curves))
        panels = figure.subplots(len(curves), 1, sharex=True)
        for axes, (name, rows) in zip(panels, curves.items(), strict=True):
            points = [Point(row.step, row.score, row.se) for row in rows]
            _draw_points(axes, points, _VALIDATION_COLOR, name=visible(name), marker="o-", size=3)
            if rows[-1].chooses:
                _draw_star(axes, max(rows, key=lambda row: row.score))
            axes.set_ylabel("score" if rows[-1].metric == SCORE else "share of maximum")
            name_lines(axes)
            tidy(axes)
        panels[0].set_title(self.title, loc="left", fontsize=10.5, parse_math=False)
        panels[-1].set_xlabel("training step")
        add_caption(
            figure,
            f"Validations, ±{_SHOWN_ERRORS} standard errors; each panel has its own scale. The "
            "star marks the best version, on the curve that chooses the best checkpoint.",
        )
        return figure

    def _draw_phases_chart(self) -> "Figure":
        """Draw the seconds that each step spent in each phase, stacked."""
        steps = []
        seconds_of_steps = []
        for row in self.rows:
            seconds_of_phases = phases(row)
            if seconds_of_phases:
                steps.append(int(row["step"]))
                seconds_of_steps.append(seconds_of_phases)
        if len(steps) < 2:
            raise SettingsError(
                'no two rows have a "time/…"; the run ended before its second step.'
            )
        names = []
        layers = []
        for name in _PHASE_COLORS:
            values = [seconds.get(name) for seconds in seconds_of_steps]
            if values.count(None) < len(values):
                names.append(name)
                layers.append(trailing_mean([value or 0.0 for value in values], SMOOTH))
        figure = make_figure(4.4, 2.4)
        axes = figure.subplots()
        colors = [_PHASE_COLORS[name] for name in names]
        axes.stackplot(steps, *layers, labels=names, colors=colors, alpha=0.85)
        axes.margins(0)
        axes.set_ylabel(f"seconds per step,\nmean of the last {SMOOTH}", fontsize=8)
        axes.set_xlabel("training step", fontsize=8)
        axes.tick_params(labelsize=8)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False, reverse=True)
        tidy(axes)
        return figure


def _draw_points(
    axes: "Axes",
    points: Sequence[Point],
    color: str,
    *,
    name: str,
    marker: str,
    size: float,
) -> None:
    """Draw held-out scores with error bars.

    Args:
        axes: The axes to draw on.
        points: At least one score, by step.
        color: Color of points and bars.
        name: Name of the line, to which the last mean is added.
        marker: Format string of matplotlib, e.g. "o-".
        size: Size of a point.
    """
    steps = []
    means = []
    bars = []
    for point in points:
        steps.append(point.step)
        means.append(point.mean)
        bars.append(_SHOWN_ERRORS * point.standard_error)
    axes.errorbar(steps, means, yerr=bars, fmt="none", ecolor=color, capsize=size / 1.5)
    label = line_label(f"{name} {means[-1]:.2f}")
    axes.plot(
        steps,
        means,
        marker,
        color=color,
        markersize=size,
        zorder=5,
        label=label,
    )


def _draw_star(axes: "Axes", best: Validated) -> None:
    """Mark the best validation."""
    axes.plot(
        best.step,
        best.score,
        "*",
        color=_VALIDATION_COLOR,
        markeredgecolor="white",
        markersize=13,
        zorder=6,
        label=f"best {best.score:.2f}, step {best.step}",
    )


def small_figure(lines: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> "Figure":
    """Return one chart of a page's grid.

    Args:
        lines: Steps and values of each line, by its name.
    """
    figure = make_figure(3.6, 1.9)
    axes = figure.subplots()
    for number, (name, (steps, values)) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        # With more players than colors, the others are dashed.
        style = "-" if number < len(COLORS) else "--"
        draw_line(axes, steps, values, color, width=1.7, style=style)
        axes.plot([], [], color=color, linestyle=style, label=name)
    if len(lines) > 1:
        columns = min(len(lines), _MOST_LEGEND_COLUMNS)
        figure.legend(loc="outside upper left", ncols=columns, fontsize=7.5, frameon=False)
    axes.tick_params(labelsize=7.5)
    tidy(axes)
    return figure
