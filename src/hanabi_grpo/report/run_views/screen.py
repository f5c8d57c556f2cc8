"""The dashboard of a run: fits the terminal it is printed on, whatever its size is at that moment."""

from collections.abc import Sequence
from datetime import datetime

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.run_views.braille import bin_means, braille_curve, spark_line
from hanabi_grpo.report.run_views.figures import (
    PLAYER,
    SCORE,
    TEAM,
    WINDOW,
    duration,
    players,
    recent,
    recent_phases,
    series,
    shown,
)
from hanabi_grpo.report.run_views.last_game import LastGame
from hanabi_grpo.report.run_views.state import RunState

_WIDE = 108
"""Columns from which on two panels stand side by side."""
_CURVE_LINES = (4, 12)
_QUIET = 600.0
"""Seconds without a step after which the age is marked."""
_MOST_MOVES = 12
_TITLE, _VALUE, _LEAST_SPARK = 26, 8, 4
"""Characters of a figure's title and value, and of the shortest curve worth drawing."""
_PHASE_STYLES = {"push": "magenta", "rollout": "cyan", "wait": "yellow", "recall": "blue", "train": "green"}


class RunScreen:
    """A frame of the dashboard; the lower parts give way where the terminal is low."""

    def __init__(self, state: RunState) -> None:
        """Prepare the frame of one look."""
        self.state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the frame out for the width and height at hand."""
        state, width = self.state, options.max_width
        height = options.height or (console.size.height if console.is_terminal else None)
        head = header(state)
        if not state.rows:
            yield head
            yield Text(
                "No step yet: waiting for the trainer's first one."
                if state.is_there
                else "No run there yet; it appears when the trainer starts.",
                style="yellow",
            )
            yield from (Text(note, style="yellow") for note in state.notes)
            return
        lines = min(max((height or 40) // 5, _CURVE_LINES[0]), _CURVE_LINES[1])
        score = curve_panel("score, mean of the training games", *series(state.rows, SCORE), lines)
        inner = (width // 2 if width >= _WIDE else width) - 4
        title = f"means of the last {WINDOW} steps; curves: the whole run"
        figures = Panel(Group(_team(state, inner), _players(state, inner)), title=title, title_align="left")
        alarms = Panel(_alarms(state), title="alarms", title_align="left")
        phases = Panel(_phases(state), title=f"seconds a step, last {WINDOW}", title_align="left")
        if width >= _WIDE:
            body = Table.grid(expand=True)
            body.add_column(ratio=1)
            body.add_column(ratio=1)
            body.add_row(Group(score, phases, alarms), figures)
            parts: list[RenderableType] = [head, body]
        else:
            parts = [head, score, alarms, phases, figures]
        drawn = [line for part in parts for line in console.render_lines(part, options.update(height=None))]
        used = len(drawn)
        if height is not None and used > height:
            for line in drawn[: height - 1]:
                yield from line
                yield Segment.line()
            more = f"{used - height + 1} more lines: figures of team and players; use a higher terminal"
            yield Text(more, style="yellow", no_wrap=True, overflow="ellipsis", end="")
            return
        yield from parts
        if state.game is not None:
            # Two lines of frame, one of the heading and one of the table.
            room = _MOST_MOVES if height is None else min(_MOST_MOVES, height - used - 4)
            if room > 0:
                yield _game(state.game, room)


def header(state: RunState) -> RenderableType:
    """Return name, progress, versions and whether the trainer is there."""
    title = Text(state.name, style="bold")
    settings = state.settings
    facts = [
        visible(str(value))
        for value in (
            settings.get("HANABI_PRESET"),
            f"{settings['HANABI_PLAYERS']} players" if settings.get("HANABI_PLAYERS") else None,
            str(settings["MODEL"]).rstrip("/").rpartition("/")[2] if settings.get("MODEL") else None,
        )
        if value
    ]
    title.append("  " + " · ".join(facts), style="dim")
    line = Text()
    if state.rows:
        line.append(f"step {state.step}" + (f"/{state.max_steps}" if state.max_steps else ""), style="bold")
        line.append(f"  games by version {state.version}")
        if state.checkpoints:
            line.append(f"  checkpoint {state.checkpoints[-1]}")
        if state.step_seconds is not None:
            line.append(f"  {state.step_seconds:.1f} s a step")
        if state.seconds_left and state.trainer != "not running":
            line.append(f"  {duration(state.seconds_left)} left")
        if state.age is not None:
            late = state.age > _QUIET and state.trainer != "not running"
            line.append(f"  last step {duration(state.age)} ago", style="yellow" if late else "")
    words = {"running": ("trainer runs", "green"), "not running": ("trainer not running", "yellow"),
             "elsewhere": ("trainer on another machine", "dim")}.get(state.trainer)  # fmt: skip
    if words:
        line.append(f"  {words[0]}", style=words[1])
    parts: list[RenderableType] = [title]
    if line.plain:
        parts.append(line)
    if state.rows and state.max_steps:
        # The bar alone leaves its line open.
        grid = Table.grid(expand=True)
        grid.add_row(ProgressBar(total=state.max_steps, completed=min(state.step, state.max_steps)))
        parts.append(grid)
    return Group(*parts)


def curve_panel(title: str, steps: Sequence[int], values: Sequence[float], lines: int) -> RenderableType:
    """Return a curve with its scale: trailing means over nine steps, so that the noise of a step does not hide it."""
    if not values:
        return Panel(Text("no value yet", style="dim"), title=title, title_align="left")
    return Panel(_Curve(steps, trailing_mean(values, 9), lines), title=title, title_align="left")


class _Curve:
    """Draws itself as wide as there is room."""

    def __init__(self, steps: Sequence[int], values: Sequence[float], lines: int) -> None:
        self.steps, self.values, self.lines = steps, values, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        low, high = min(self.values), max(self.values)
        labels = [shown(high), *[""] * (self.lines - 2), shown(low)]
        margin = max(map(len, labels)) + 1
        width = max(4, options.max_width - margin)
        number = min(len(self.values), 2 * width)
        points = list(zip(bin_means([float(step) for step in self.steps], number), bin_means(self.values, number),
                          strict=True))  # fmt: skip
        for label, line in zip(labels, braille_curve(points, width, self.lines, low, high), strict=True):
            yield Text.assemble((f"{label:>{margin - 1}} ", "dim"), (line, "cyan"), no_wrap=True)
        first, last = f"step {self.steps[0]}", str(self.steps[-1])
        gap = max(1, width - len(first) - len(last))
        yield Text(f"{'':{margin}}{first}{'':{gap}}{last}", style="dim", no_wrap=True)


def _team(state: RunState, width: int) -> Table:
    spark = max(0, min(width - _TITLE - _VALUE - 3, 40))
    table = _figure_table(["team"], spark)
    for one in TEAM:
        if recent(state.rows, one.name) is not None:
            table.add_row(one.title, *_cells(state, one.name, spark))
    return table


def _players(state: RunState, width: int) -> Table:
    names = players(state.rows)
    spark = min((width - _TITLE) // max(1, len(names)) - _VALUE - 3, 40)
    spark = spark if spark >= _LEAST_SPARK else 0
    table = _figure_table(names, spark)
    for one in PLAYER:
        if any(recent(state.rows, f"{name}/{one.name}") is not None for name in names):
            cells = [_cells(state, f"{name}/{one.name}", spark) for name in names]
            table.add_row(one.title, *(text for cell in cells for text in cell))
    return table


def _figure_table(names: Sequence[str], spark: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", width=_TITLE, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, width=_VALUE)
        if spark:
            table.add_column("", no_wrap=True, width=spark, style="cyan")
    return table


def _cells(state: RunState, name: str, spark: int) -> list[str]:
    value = shown(recent(state.rows, name))
    return [value, spark_line(series(state.rows, name)[1], spark)] if spark else [value]


def _phases(state: RunState) -> Table:
    found = recent_phases(state.rows)
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    total, begin = sum(found.values()), 0.0
    for name, seconds in found.items():
        bar = Bar(size=total or 1.0, begin=begin, end=begin + seconds, color=_PHASE_STYLES[name])
        table.add_row(name, f"{seconds:.2f}", bar)
        begin += seconds
    if not found:
        table.add_row(Text("no times in these rows", style="dim"))
    return table


def _alarms(state: RunState) -> RenderableType:
    lines = [
        Text.assemble((f"{one.name}: ", "bold red"), f"{one.subject + ': ' if one.subject else ''}{one.title}, ",
                      f"since step {one.since}")
        for one in state.alarms
    ]  # fmt: skip
    if not lines:
        lines.append(Text("none is raised", style="green"))
    counts = {kind: count for kind, count in state.incident_counts.items() if kind not in ("alarm", "alarm_over")}
    if counts:
        lines.append(
            Text("incidents: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())), style="yellow")
        )
    for one in [one for one in state.incidents if one.kind in counts][-2:]:
        when = "" if one.time is None else _clock(one.time)
        lines.append(Text(f"{when} {one.kind}: {' '.join(one.message.split())}", no_wrap=True, overflow="ellipsis"))
    lines += [Text(note, style="yellow") for note in state.notes]
    return Group(*lines)


def _clock(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds):%d %b %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""


def _game(game: LastGame, most: int) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    first = max(0, len(game.moves) - most)
    for number, move in enumerate(game.moves[first:], start=first + 1):
        bad = Text(f"{move.bad} reply; instead: ", style="red") if move.bad else Text()
        grid.add_row(
            Text(str(number), style="dim"), Text(move.player, style="bold"), bad + Text(move.did),
            Text(move.earned, style="dim"),
        )  # fmt: skip
    versions = f" · version {', '.join(map(str, game.versions))}" if game.versions else ""
    heading = Text(f"{game.outcome} · deal {game.deal}{versions}")
    title = f"last recorded game: {game.file}, --game {game.number}"
    return Panel(Group(heading, grid, Text(f"at the end: {game.table}", style="dim")), title=title, title_align="left")
