"""The dashboard of a run: fits the terminal it is printed on, whatever its size is at that
moment.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.smoothing import bin_means, trailing_mean
from hanabi_grpo.report.played import run_setup
from hanabi_grpo.report.run_views.figures import (
    SCORE,
    WINDOW,
    clock,
    duration,
    player_figures,
    players,
    recent,
    recent_phases,
    series,
    shown,
    team_figures,
)
from hanabi_grpo.report.run_views.run_watch import RunState

_WIDE = 108
"""Columns from which on two panels stand side by side."""
_MOST_FIGURES = 11
"""Of the team, and of each player; the page of `report` has all."""
_TITLE, _VALUE, _LEAST_SPARK, _MOST_SPARK = 26, 8, 4, 40
"""Characters of a figure's title and value, and of the shortest and longest curve worth drawing."""
_PHASE_STYLES = {
    **{"push": "magenta", "rollout": "cyan", "resample": "bright_cyan"},
    **{"wait": "yellow", "recall": "blue", "train": "green"},
}
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille character, by column and row from above (Unicode, block "Braille
Patterns").
"""
_BLOCKS = "▁▂▃▄▅▆▇█"


class RunScreen:
    """A frame of the dashboard; its lower parts are cut off where the terminal is low."""

    def __init__(
        self, state: RunState, levels: Mapping[str, float] | None = None, first: int = 0
    ) -> None:
        """Prepare the frame of one look; `levels` are scores to hold the curve against, `first` is
        the panel on top.
        """
        self.state, self.levels, self.first = state, levels or {}, first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the frame out for the width and height at hand."""
        state, width = self.state, options.max_width
        height = options.height or (console.size.height if console.is_terminal else None)
        if not state.rows:
            text = "No step yet: waiting for the trainer's first one."
            if not state.is_there:
                text = "No run there yet; it appears when the trainer starts."
            yield Group(
                _header(state), *(Text(line, style="yellow") for line in (text, *state.notes))
            )
            return
        column = width // 2 if width >= _WIDE else width
        setup = run_setup(state.settings)
        span = "" if setup is None else ", {:g} to {:g}".format(*score_range(setup.spec))
        levels = self.levels or (
            {"attainable": setup.spec.attainable} if setup and setup.spec.attainable else {}
        )
        curve = _curve(state, column - 4, min(max((height or 40) // 5, 4), 12))
        beside = Text(
            "  ".join(f"{name} {shown(level)}" for name, level in levels.items()), style="dim"
        )
        score = _panel(
            f"score, mean of the training games{span}", Group(curve, *([beside] if levels else []))
        )
        figures = _panel(
            f"means of the last {WINDOW} steps; curves: the whole run", _figures(state, column - 4)
        )
        alarms = _panel("alarms", _alarms(state))
        phases = _panel(f"seconds a step, last {WINDOW}", _phases(state))
        parts: list[RenderableType] = [score, alarms, figures, phases]
        parts = parts[self.first % len(parts) :] + parts[: self.first % len(parts)]
        if width >= _WIDE:
            body = Table.grid(expand=True)
            body.add_column(ratio=1)
            body.add_column(ratio=1)
            body.add_row(Group(score, phases, alarms), figures)
            parts = [body]
        parts = [_header(state), *parts]
        lines = console.render_lines(Group(*parts), options.update(height=None))
        if height is None or len(lines) <= height:
            yield from parts
            return
        for line in lines[: height - 1]:
            yield from line
            yield Segment.line()
        more = f"{len(lines) - height + 1} more lines; tab brings the next panel up, q leaves"
        yield Text(more, style="yellow", no_wrap=True, overflow="ellipsis", end="")


def _header(state: RunState) -> RenderableType:
    """Return name, progress, versions and whether the trainer is there."""
    settings = state.settings
    facts = (
        settings.get("HANABI_ENV"),
        settings.get("HANABI_PRESET"),
        f"{settings['HANABI_PLAYERS']} players" if settings.get("HANABI_PLAYERS") else None,
        str(settings.get("MODEL") or "").rstrip("/").rpartition("/")[2],
    )
    title = Text.assemble(
        (state.name, "bold"), ("  " + " · ".join(visible(str(one)) for one in facts if one), "dim")
    )
    line = Text()
    if state.rows:
        line.append(
            f"step {state.step}" + (f"/{state.max_steps}" if state.max_steps else ""), style="bold"
        )
        line.append(f"  games by version {state.version}")
        if state.checkpoints:
            line.append(f"  checkpoint {state.checkpoints[-1]}")
        if state.step_seconds is not None:
            line.append(f"  {state.step_seconds:.1f} s a step")
        if state.seconds_left and state.trainer:
            line.append(f"  {duration(state.seconds_left)} left")
        who = f"trainer: {state.trainer}" if state.trainer else "trainer not running"
        line.append(f"\n{who}", style="green" if state.trainer else "yellow")
        if state.age is not None:
            line.append(f"  last step {duration(state.age)} ago")
    parts: list[RenderableType] = [title, *([line] if line.plain else [])]
    if state.rows and state.max_steps:
        # The bar alone leaves its line open.
        grid = Table.grid(expand=True)
        grid.add_row(ProgressBar(total=state.max_steps, completed=min(state.step, state.max_steps)))
        parts.append(grid)
    return Group(*parts)


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left")


def _curve(state: RunState, width: int, height: int) -> RenderableType:
    """Return the trailing means with their scale, so that the noise of a step does not hide the
    curve.
    """
    steps, values = series(state.rows, SCORE)
    if not values:
        return Text("no value yet", style="dim")
    means = trailing_mean(values, 9)
    labels = [shown(max(means)), *[""] * (height - 2), shown(min(means))]
    margin = max(map(len, labels)) + 1
    room = max(4, width - margin)
    points = list(zip(bin_means(steps, 2 * room), bin_means(means, 2 * room), strict=True))
    lines = [
        Text.assemble((f"{label:>{margin - 1}} ", "dim"), (line, "cyan"), no_wrap=True)
        for label, line in zip(labels, braille_curve(points, room, height), strict=True)
    ]
    ends = f"{'':{margin}}step {steps[0]}{steps[-1]:>{max(1, room - len(f'step {steps[0]}'))}}"
    return Group(*lines, Text(ends, style="dim", no_wrap=True))


def braille_curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return a curve through points (x, y), x ascending, as `height` lines of `width` characters of
    2 x 4 dots.

    It goes from the lowest to the highest y; rich has no such thing.

    Example:
        braille_curve([(0, 0.0), (1, 1.0)], 2, 1) == ["⡠⠊"]
    """
    cells = [[0] * width for _ in range(height)]
    (left, right), (low, high) = (
        (min(values), max(values)) for values in zip(*points, strict=True)
    )
    dots = [
        (
            round((x - left) / ((right - left) or 1) * (2 * width - 1)),
            round((high - y) / ((high - low) or 1) * (4 * height - 1)),
        )
        for x, y in points
    ]
    for before, now in pairwise(dots[:1] + dots):
        steps = max(abs(now[0] - before[0]), abs(now[1] - before[1]), 1)
        for step in range(1, steps + 1):
            column, row = (
                round(a + (b - a) * step / steps) for a, b in zip(before, now, strict=True)
            )
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def spark_line(values: Sequence[float], width: int) -> str:
    """Return one row of blocks from the lowest to the highest value; of more values than
    characters, means.

    Example:
        spark_line([0.0, 7.0], 8) == "▁█"
    """
    if not values:
        return ""
    means = bin_means(values, width)
    low, high = min(means), max(means)
    return "".join(
        _BLOCKS[round((mean - low) / ((high - low) or 1) * (len(_BLOCKS) - 1))] for mean in means
    )


def _figures(state: RunState, width: int) -> Group:
    prefixes = {name: f"{name}/" for name in players(state.rows)}
    return Group(
        _figure_table(state, {"team": ""}, team_figures(state.rows), width),
        _figure_table(state, prefixes, player_figures(state.rows), width),
    )


def _figure_table(
    state: RunState, columns: Mapping[str, str], figures: Mapping[str, str], width: int
) -> Table:
    """Return a row a figure, and a column for each prefix of their names, with its curve where
    there is room.
    """
    spark = min((width - _TITLE) // max(1, len(columns)) - _VALUE - 3, _MOST_SPARK)
    spark = spark if spark >= _LEAST_SPARK else 0
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", width=_TITLE, no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True, width=_VALUE)
        if spark:
            table.add_column("", no_wrap=True, width=spark, style="cyan")
    for name, title in [*figures.items()][:_MOST_FIGURES]:
        cells = []
        for prefix in columns.values():
            cells.append(shown(recent(state.rows, prefix + name)))
            cells += [spark_line(series(state.rows, prefix + name)[1], spark)] if spark else []
        table.add_row(title, *cells)
    return table


def _phases(state: RunState) -> RenderableType:
    found = recent_phases(state.rows)
    if not found:
        return Text("no times in these rows", style="dim")
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    total, begin = sum(found.values()), 0.0
    for name, seconds in found.items():
        bar = Bar(size=total or 1.0, begin=begin, end=begin + seconds, color=_PHASE_STYLES[name])
        table.add_row(name, f"{seconds:.2f}", bar)
        begin += seconds
    return table


def _alarms(state: RunState) -> RenderableType:
    lines = []
    for one in state.readings[: len(state.raised)]:
        of = f"{visible(one.subject)}: " if one.subject else ""
        told = f"{of}{one.alarm.title}, since step {state.raised[one.key]}"
        lines.append(Text.assemble((f"{one.alarm.name}: ", "bold red"), told))
    lines = lines or [Text("none is raised", style="green")]
    counts = {
        kind: count
        for kind, count in state.incident_counts.items()
        if kind not in ("alarm", "alarm_over")
    }
    if counts:
        words = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        lines.append(Text(f"incidents: {words}", style="yellow"))
    for incident in [one for one in state.incidents if one.kind in counts][-2:]:
        text = f"{clock(incident.time)} {incident.kind}: {' '.join(incident.message.split())}"
        lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
    return Group(*lines, *(Text(note, style="yellow") for note in state.notes))
