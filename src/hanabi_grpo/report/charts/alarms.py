"""Charts of the metrics that alarms watch: a small chart per metric, with thresholds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hanabi_grpo.envs.alarms import Alarm
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.canvas import ALERT, COLORS, draw_line, make_figure, tidy
from hanabi_grpo.runs.alarms import AlarmWatch, Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COLUMNS = 4
"""Columns of the grid."""
_PANEL_WIDTH = 3.4
"""Inches."""
_PANEL_HEIGHT = 2.3
_TITLE_HEIGHT = 0.8
_TITLE_WRAP = 52
"""Characters of a panel's title that fit its width."""
_MARGIN = 0.3
"""Share of the curves' range by which an axis may be extended to show a threshold."""


@dataclass(slots=True)
class _Line:
    """The readings of one alarm for one subject, by step."""

    steps: list[int] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def last(self) -> Reading:
        return self.readings[-1]

    @property
    def was_raised(self) -> bool:
        return any(reading.raised for reading in self.readings)

    @property
    def is_worth_drawing(self) -> bool:
        """False for a constant, which is not informative, unless it raised the alarm."""
        if self.was_raised or len(self.readings) == 1:
            return True
        first = self.readings[0].value
        return any(reading.value != first for reading in self.readings)


@dataclass(slots=True)
class _Panel:
    """One chart of the grid: all alarms that watch one metric."""

    lines: dict[tuple[str, str], _Line] = field(default_factory=dict)
    """Lines by name and subject of an alarm."""

    def add(self, step: int, reading: Reading) -> None:
        line = self.lines.setdefault(reading.key, _Line())
        line.steps.append(step)
        line.readings.append(reading)

    @property
    def was_raised(self) -> bool:
        return any(line.was_raised for line in self.lines.values())

    @property
    def nearest(self) -> Reading:
        """The last reading that is nearest to its threshold."""
        last_readings = [line.last for line in self.lines.values()]
        return min(last_readings, key=lambda reading: reading.distance)

    @property
    def title(self) -> str:
        """Name of the figure, with the nearest threshold, e.g. "entropy…; alarm < 0.01"."""
        reading = self.nearest
        if reading.level is None:
            return reading.alarm.title
        side = "<" if reading.alarm.below else ">"
        return f"{reading.alarm.title}; alarm {side} {reading.level:.2g}"


def alarm_figure(
    rows: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm], *, title: str
) -> "Figure":
    """Draw every metric that an alarm watches against the step, raised and nearest first.

    Dashed lines are thresholds, drawn where they are near; a relative threshold has a line per
    player. A red band marks the steps at which an alarm of this metric was raised. Constant metrics
    are left out, since they are not informative.

    Args:
        rows: Rows of `metrics.jsonl`, by step.
        alarms: The alarms of the run.
        title: Title of the whole figure.

    Raises:
        SettingsError: The rows have no such figure.
    """
    panels = _panels(rows, alarms)
    if not panels:
        raise SettingsError(
            "no row has a metric that an alarm watches; the run ended before its first step."
        )
    panels.sort(key=_raised_and_nearest_first)
    num_columns = min(_MOST_COLUMNS, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    height = _PANEL_HEIGHT * num_rows + _TITLE_HEIGHT
    figure = make_figure(_PANEL_WIDTH * num_columns, height)
    grid = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    color_of = _colors_of_subjects(panels)
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel, color_of)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    handles = []
    for subject, color in color_of.items():
        if subject:
            handles += grid[0].plot([], [], color=color, label=subject)
    figure.legend(
        handles=handles,
        loc="outside upper right",
        ncols=len(handles),
        fontsize=9,
        frameon=False,
    )
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    return figure


def _raised_and_nearest_first(panel: _Panel) -> tuple[bool, float]:
    """Return the sort key of a panel."""
    return not panel.was_raised, panel.nearest.distance


def _panels(rows: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm]) -> list[_Panel]:
    """Return a panel for each figure that has something to show."""
    panel_of_figure = {alarm.figure: _Panel() for alarm in alarms}
    watch = AlarmWatch(alarms)
    for row in rows:
        watch.update(row)
        for reading in watch.readings:
            panel = panel_of_figure[reading.alarm.figure]
            panel.add(int(row["step"]), reading)
    panels = []
    for panel in panel_of_figure.values():
        if any(line.is_worth_drawing for line in panel.lines.values()):
            panels.append(panel)
    return panels


def _colors_of_subjects(panels: Sequence[_Panel]) -> dict[str, str]:
    """Return a color for each player or board, players first; colors repeat when used up."""
    players = set()
    boards = set()
    for panel in panels:
        for _, subject in panel.lines:
            if subject.startswith("player_"):
                players.add(subject)
            else:
                boards.add(subject)
    subjects = sorted(players) + sorted(boards)
    return dict(zip(subjects, cycle(COLORS), strict=False))


def _draw_panel(axes: "Axes", panel: _Panel, color_of: Mapping[str, str]) -> None:
    # Several alarms may watch one figure of a subject; its curve is drawn once.
    line_of_subject = {}
    for (_, subject), line in panel.lines.items():
        line_of_subject[subject] = line
    for subject, line in line_of_subject.items():
        values = [reading.value for reading in line.readings]
        draw_line(axes, line.steps, values, color_of[subject], width=1.7)
    low, high = axes.get_ylim()
    for (_, subject), line in panel.lines.items():
        _draw_threshold(axes, line, color_of[subject])
        _shade_raised_steps(axes, line)
    # A distant threshold would flatten the curve.
    margin = _MARGIN * (high - low)
    axes.set_ylim(low - margin, high + margin)
    color = ALERT if panel.was_raised else "black"
    axes.set_title(fill(panel.title, _TITLE_WRAP), fontsize=8.5, loc="left", color=color)
    axes.tick_params(labelsize=7)
    tidy(axes)


def _draw_threshold(axes: "Axes", line: _Line, color: str) -> None:
    """Draw the threshold of an alarm: red if it is fixed, else in the player's color."""
    steps = []
    levels = []
    for step, reading in zip(line.steps, line.readings, strict=True):
        if reading.level is not None:
            steps.append(step)
            levels.append(reading.level)
    if len(set(levels)) == 1:
        color = ALERT
    axes.plot(steps, levels, color=color, linestyle="--", linewidth=0.9)


def _shade_raised_steps(axes: "Axes", line: _Line) -> None:
    for step, reading in zip(line.steps, line.readings, strict=True):
        if reading.raised:
            axes.axvspan(step - 0.5, step + 0.5, color=ALERT, alpha=0.1, linewidth=0)
