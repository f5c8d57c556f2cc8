"""What the alarms of a run watch: one small picture per figure, with thresholds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hanabi_grpo.envs.alarms import Alarm
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.canvas import ALERT, COLORS, draw_line, make_figure, tidy
from hanabi_grpo.runs.alarms import AlarmWatch, Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS, _CELL = 4, (3.4, 2.3)
"""Of the grid; inches of one of its pictures."""
_Readings = dict[tuple[str, str], list[tuple[int, Reading]]]
"""By name and subject of an alarm, each with its step."""


def alarm_figure(
    rows: Sequence[Mapping[str, Any]], alarms: Sequence[Alarm], *, title: str
) -> "Figure":
    """Return every figure that an alarm watches against the step, raised and nearest first.

    Dashed: thresholds, as far as they are near, a relative one for each player; a red band: steps
    at which an alarm of
    this figure was raised. Constants are left out: they say nothing. `rows` are those of
    `metrics.jsonl`, by step. Rows without any such figure are a SettingsError."""
    watch = AlarmWatch(alarms)
    found: dict[str, _Readings] = {alarm.figure: {} for alarm in alarms}
    for row in rows:
        watch.update(row)
        for one in watch.readings:
            found[one.alarm.figure].setdefault(one.key, []).append((int(row["step"]), one))
    pictures = [picture for picture in found.values() if any(map(_tells, picture.values()))]
    if not pictures:
        raise SettingsError(
            "no row has a figure that an alarm watches; the run ended before its first step."
        )
    pictures.sort(key=lambda one: (not any(map(_was_raised, one.values())), _nearest(one).distance))
    columns = min(_COLUMNS, len(pictures))
    lines = -(-len(pictures) // columns)
    figure = make_figure(_CELL[0] * columns, _CELL[1] * lines + 0.8)
    grid = figure.subplots(lines, columns, squeeze=False).flat
    found_subjects = {subject for picture in pictures for _, subject in picture}
    subjects = sorted(found_subjects, key=lambda name: (not name.startswith("player_"), name))
    color_of = dict(zip(subjects, COLORS * len(subjects), strict=False))
    for axes, picture in zip(grid, pictures, strict=False):
        _draw(axes, picture, color_of)
    for axes in grid[len(pictures) :]:
        axes.set_visible(False)
    handles = [
        grid[0].plot([], [], color=color, label=name)[0] for name, color in color_of.items() if name
    ]
    figure.legend(
        handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, frameon=False
    )
    figure.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    return figure


def _nearest(picture: _Readings) -> Reading:
    return min((readings[-1][1] for readings in picture.values()), key=lambda one: one.distance)


def _was_raised(readings: Sequence[tuple[int, Reading]]) -> bool:
    return any(one.raised for _, one in readings)


def _tells(readings: Sequence[tuple[int, Reading]]) -> bool:
    return (
        _was_raised(readings) or len({one.value for _, one in readings}) > 1 or len(readings) == 1
    )


def _draw(axes: "Axes", picture: _Readings, color_of: Mapping[str, str]) -> None:
    lines = {subject: readings for (_, subject), readings in picture.items()}
    for subject, readings in lines.items():
        steps, values = zip(*((step, one.value) for step, one in readings), strict=True)
        draw_line(axes, steps, values, color_of[subject], width=1.7)
    low, high = axes.get_ylim()
    for (_, subject), readings in picture.items():
        levels = {step: one.level for step, one in readings if one.level is not None}
        color = ALERT if len(set(levels.values())) == 1 else color_of[subject]
        axes.plot(list(levels), list(levels.values()), color=color, linestyle="--", linewidth=0.9)
        for step in {step for step, one in readings if one.raised}:
            axes.axvspan(step - 0.5, step + 0.5, color=ALERT, alpha=0.1, linewidth=0)
    # A threshold far away would press the curve flat.
    axes.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
    raised = any(map(_was_raised, picture.values()))
    one = _nearest(picture)
    level = (
        "" if one.level is None else f"; alarm {'<' if one.alarm.below else '>'} {one.level:.2g}"
    )
    axes.set_title(
        one.alarm.title + level, fontsize=8.5, loc="left", color=ALERT if raised else "black"
    )
    axes.tick_params(labelsize=7)
    tidy(axes)
