"""What the alarms of a run watch: one small picture per figure, with thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hanabi_grpo.envs.alarms import Alarm
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.canvas import COLORS, make_grid, name_lines, tidy
from hanabi_grpo.runs.alarms import AlarmWatch, Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RAISED = "#c62828"


@dataclass(slots=True)
class _Line:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    raised: set[int] = field(default_factory=set)
    levels: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Per alarm its threshold, where it has one."""

    @property
    def tells(self) -> bool:
        """Whether it moves, or an alarm was raised on it: a constant says nothing."""
        return bool(self.raised) or len(set(self.values)) > 1 or len(self.values) == 1


def alarm_figure(rows: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm], *, title: str) -> "Figure":
    """Return every figure that an alarm watches against the step, those with a raised alarm first.

    Thin: each step; bold: the mean over the last steps, which alarms look at; dashed: their thresholds, a relative one
    for each player; a red band: steps at which an alarm of this figure was raised. Constants are left out.

    Args:
        rows: Of `metrics.jsonl`, by step.
        alarms: Of the run, see `alarms_of`.
        title: Heading.

    Raises:
        SettingsError: No row has a figure that an alarm watches.
    """
    pictures = _pictures(rows, alarms)
    if not pictures:
        raise SettingsError("no row has a figure that an alarm watches; the run ended before its first step.")
    figure, grid = make_grid(len(pictures), title, sharex=True)
    subjects = sorted({subject for _, lines in pictures for subject in lines if subject.startswith("player_")})
    color_of = dict(zip(subjects, COLORS, strict=False))
    for axes, (heading, lines) in zip(grid, pictures, strict=True):
        _draw(axes, heading, lines, color_of)
    name_lines(figure, grid[0], color_of)
    return figure


def _pictures(rows: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm]) -> list[tuple[str, dict[str, _Line]]]:
    """Return per figure its heading and lines by subject; raised ones first, else in the order of the table."""
    watch = AlarmWatch(alarms)
    pictures: dict[str, tuple[str, dict[str, _Line]]] = {alarm.figure: (alarm.title, {}) for alarm in alarms}
    for row in rows:
        watch.update(row)
        for reading in watch.readings:
            _add(pictures[reading.alarm.figure][1].setdefault(reading.subject, _Line()), int(row["step"]), reading)
    found = [picture for picture in pictures.values() if any(line.tells for line in picture[1].values())]
    return sorted(found, key=lambda picture: not any(line.raised for line in picture[1].values()))


def _add(line: _Line, step: int, reading: Reading) -> None:
    if not line.steps or line.steps[-1] != step:
        line.steps.append(step)
        line.values.append(reading.value)
        line.means.append(reading.mean)
    if reading.raised:
        line.raised.add(step)
    if reading.level is not None:
        line.levels.setdefault(reading.alarm.name, []).append((step, reading.level))


def _draw(axes: "Axes", heading: str, lines: Mapping[str, _Line], color_of: Mapping[str, str]) -> None:
    others = iter(COLORS)
    drawn: set[tuple[tuple[int, float], ...]] = set()
    for subject, line in lines.items():
        color = color_of.get(subject) or next(others, COLORS[0])
        axes.plot(line.steps, line.values, color=color, alpha=0.3, linewidth=0.8)
        label = None if subject in color_of else subject or None
        axes.plot(line.steps, line.means, color=color, linewidth=1.7, label=label)
        for step in line.raised:
            axes.axvspan(step - 0.5, step + 0.5, color=_RAISED, alpha=0.1, linewidth=0)
    low, high = axes.get_ylim()
    for subject, line in lines.items():
        for levels in line.levels.values():
            fixed = len({level for _, level in levels}) == 1
            key = ((0, levels[0][1]),) if fixed else tuple(levels)
            if key in drawn:
                continue
            drawn.add(key)
            steps, values = zip(*levels, strict=True)
            color = _RAISED if fixed else color_of.get(subject, _RAISED)
            axes.plot(steps, values, color=color, linestyle="--", linewidth=0.9)
            # A threshold far away would press the curve flat.
            reach = high - low
            near = [value for value in values if low - reach < value < high + reach]
            low, high = min([low, *near]), max([high, *near])
            if values[-1] in near:
                axes.annotate(
                    f"{values[-1]:.3g}", (steps[-1], values[-1]), fontsize=6.5, color=color, va="bottom", ha="right"
                )
    pad = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - pad, high + pad)
    if any(subject and subject not in color_of for subject in lines):
        axes.legend(fontsize=7, frameon=False)
    is_raised = any(line.raised for line in lines.values())
    axes.set_title(heading, fontsize=8.5, loc="left", color=_RAISED if is_raised else "black")
    tidy(axes, steps=False)
