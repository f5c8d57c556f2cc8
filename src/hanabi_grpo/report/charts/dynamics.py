"""What the alarms of a run watch: one small picture per figure, with thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.envs.hanabi.dynamics import AlarmWatch, Reading
from hanabi_grpo.errors import SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#1f5fa8", "#b5651d", "#2e7d32", "#6a3d9a", "#c2185b")
_RAISED = "#c62828"
_COLUMNS = 4
_CELL = (3.4, 2.3)
"""Inches of one picture."""


@dataclass(slots=True)
class _Line:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    raised: set[int] = field(default_factory=set)
    levels: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Per alarm its threshold, where it has one."""


def draw_dynamics(path: Path, rows: Sequence[Mapping[str, Any]], *, title: str) -> None:
    """Draw every figure that an alarm watches against the step, and write a PNG.

    Thin: each step; bold: the mean over the last steps, which alarms look at; dashed: their thresholds, a relative one
    for each player; a red band: steps at which an alarm of this figure was raised.

    Args:
        path: File to write; its folder is made where it is missing.
        rows: Of `dynamics.read_history`.
        title: Heading.

    Raises:
        SettingsError: No row has a figure that an alarm watches, or the file cannot be written.
    """
    pictures = _pictures(rows)
    if not pictures:
        raise SettingsError("no row has a figure that an alarm watches; the run ended before its first step.")
    # The object interface: pyplot would choose a window system and keep every figure alive.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(pictures))
    num_rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(_CELL[0] * columns, _CELL[1] * num_rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(num_rows, columns, squeeze=False, sharex=True)
    subjects = sorted({subject for _, lines in pictures.values() for subject in lines if subject.startswith("player_")})
    color_of = dict(zip(subjects, _COLORS, strict=False))
    for index, (heading, lines) in enumerate(pictures.values()):
        _draw(grid[index // columns][index % columns], heading, lines, color_of)
    for index in range(len(pictures), num_rows * columns):
        grid[index // columns][index % columns].set_visible(False)
    for column in range(columns):
        last = (len(pictures) - 1 - column) // columns
        grid[last][column].set_xlabel("training step", fontsize=8)
        grid[last][column].tick_params(labelbottom=True)
    shown = [axes for axes in grid.flat if axes.get_visible()]
    if color_of:
        handles = [shown[0].plot([], [], color=color, label=name)[0] for name, color in color_of.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, format="png")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror}); choose another --out.") from error


def _pictures(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, dict[str, _Line]]]:
    """Return per figure its heading and lines by subject, in the order of the table of alarms."""
    watch = AlarmWatch()
    pictures: dict[str, tuple[str, dict[str, _Line]]] = {alarm.figure: (alarm.title, {}) for alarm in watch.alarms}
    for row in rows:
        watch.update(row)
        for reading in watch.readings:
            _add(pictures[reading.alarm.figure][1].setdefault(reading.subject, _Line()), int(row["step"]), reading)
    return {figure: picture for figure, picture in pictures.items() if picture[1]}


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
    others = iter(_COLORS)
    drawn: set[tuple[tuple[int, float], ...]] = set()
    for subject, line in lines.items():
        color = color_of.get(subject) or next(others, _COLORS[0])
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
            axes.plot(steps, values, color=_RAISED if fixed else color_of.get(subject, _RAISED),
                      linestyle="--", linewidth=0.9)  # fmt: skip
            # A threshold far away would press the curve flat.
            reach = high - low
            low = min([low, *(value for value in values if value > low - reach)])
            high = max([high, *(value for value in values if value < high + reach)])
    pad = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - pad, high + pad)
    if any(subject and subject not in color_of for subject in lines):
        axes.legend(fontsize=7, frameon=False)
    is_raised = any(line.raised for line in lines.values())
    axes.set_title(heading, fontsize=8.5, loc="left", color=_RAISED if is_raised else "black")
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
