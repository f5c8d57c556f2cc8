"""The dashboard of a run: fits the terminal it is printed on, whatever its size is at that moment."""

from collections.abc import Mapping, Sequence

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.run_views.braille import bin_means, braille_curve, spark_line
from hanabi_grpo.report.run_views.figures import (
    SCORE,
    WINDOW,
    Figure,
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
from hanabi_grpo.report.run_views.last_game import LastGame
from hanabi_grpo.report.run_views.state import RunState

_WIDE = 108
"""Columns from which on two panels stand side by side."""
_CURVE_LINES = (4, 12)
_QUIET = 600.0
"""Seconds without a step after which the age is marked."""
_MOST_FIGURES = 11
"""Of the team, and of each player; the page of `report` has all."""
_MOST_MOVES, _MOST_TABLE = 12, 4
"""Lines of the last game."""
_TITLE, _VALUE, _LEAST_SPARK = 26, 8, 4
"""Characters of a figure's title and value, and of the shortest curve worth drawing."""
_TRAINER = {
    "running": ("trainer runs", "green"),
    "not running": ("trainer not running", "yellow"),
    "elsewhere": ("trainer on another machine", "dim"),
}
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
            text = "No step yet: waiting for the trainer's first one."
            if not state.is_there:
                text = "No run there yet; it appears when the trainer starts."
            yield from (Text(line, style="yellow") for line in (text, *state.notes))
            return
        lines = min(max((height or 40) // 5, _CURVE_LINES[0]), _CURVE_LINES[1])
        score = _panel("score, mean of the training games", _curve(state, lines))
        is_wide = width >= _WIDE
        figures = _panel(
            f"means of the last {WINDOW} steps; curves: the whole run",
            _figures(state, (width // 2 if is_wide else width) - 4),
        )
        alarms = _panel("alarms", _alarms(state))
        phases = _panel(f"seconds a step, last {WINDOW}", _phases(state))
        parts: list[RenderableType] = [head, score, alarms, phases, figures]
        if is_wide:
            body = Table.grid(expand=True)
            body.add_column(ratio=1)
            body.add_column(ratio=1)
            body.add_row(Group(score, phases, alarms), figures)
            parts = [head, body]
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
            # Two lines of frame, one of the heading, and the table.
            table = min(len(state.game.table.splitlines()), _MOST_TABLE)
            room = _MOST_MOVES if height is None else min(_MOST_MOVES, height - used - 3 - table)
            if room > 0:
                yield _game(state.game, room)


def header(state: RunState) -> RenderableType:
    """Return name, progress, versions and whether the trainer is there."""
    settings = state.settings
    facts = (
        settings.get("HANABI_ENV"),
        settings.get("HANABI_PRESET"),
        f"{settings['HANABI_PLAYERS']} players" if settings.get("HANABI_PLAYERS") else None,
        str(settings["MODEL"]).rstrip("/").rpartition("/")[2] if settings.get("MODEL") else None,
    )
    title = Text.assemble((state.name, "bold"), ("  " + " · ".join(visible(str(one)) for one in facts if one), "dim"))
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
    if state.trainer:
        line.append(f"  {_TRAINER[state.trainer][0]}", style=_TRAINER[state.trainer][1])
    parts: list[RenderableType] = [title, *([line] if line.plain else [])]
    if state.rows and state.max_steps:
        # The bar alone leaves its line open.
        grid = Table.grid(expand=True)
        grid.add_row(ProgressBar(total=state.max_steps, completed=min(state.step, state.max_steps)))
        parts.append(grid)
    return Group(*parts)


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left")


def _curve(state: RunState, lines: int) -> RenderableType:
    """Return the trailing means with their scale, so that the noise of a step does not hide the curve."""
    steps, values = series(state.rows, SCORE)
    return _Curve(steps, trailing_mean(values, 9), lines) if values else Text("no value yet", style="dim")


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
        points = list(zip(bin_means(self.steps, number), bin_means(self.values, number), strict=True))
        for label, line in zip(labels, braille_curve(points, width, self.lines, low, high), strict=True):
            yield Text.assemble((f"{label:>{margin - 1}} ", "dim"), (line, "cyan"), no_wrap=True)
        first, last = f"step {self.steps[0]}", str(self.steps[-1])
        gap = max(1, width - len(first) - len(last))
        yield Text(f"{'':{margin}}{first}{'':{gap}}{last}", style="dim", no_wrap=True)


def _figures(state: RunState, width: int) -> Group:
    names = players(state.rows)
    spark = min((width - _TITLE) // max(1, len(names)) - _VALUE - 3, 40)
    team = max(0, min(width - _TITLE - _VALUE - 3, 40))
    return Group(
        _figure_table(state, {"team": ""}, team_figures(state.rows), team),
        _figure_table(
            state,
            {name: f"{name}/" for name in names},
            player_figures(state.rows),
            spark if spark >= _LEAST_SPARK else 0,
        ),
    )


def _figure_table(state: RunState, columns: Mapping[str, str], figures: Sequence[Figure], spark: int) -> Table:
    """Return a row a figure, and a column for each prefix of their names; `spark`: characters of the curves."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", width=_TITLE, no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True, width=_VALUE)
        if spark:
            table.add_column("", no_wrap=True, width=spark, style="cyan")
    for one in figures:
        if table.row_count == _MOST_FIGURES:
            break
        keys = [prefix + one.name for prefix in columns.values()]
        means = [recent(state.rows, key) for key in keys]
        if any(mean is not None for mean in means):
            curves = [[spark_line(series(state.rows, key)[1], spark)] if spark else [] for key in keys]
            cells = [cell for mean, curve in zip(means, curves, strict=True) for cell in (shown(mean), *curve)]
            table.add_row(one.title, *cells)
    return table


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
    lines = []
    for one in state.readings[: len(state.raised)]:
        of = f"{visible(one.subject)}: " if one.subject else ""
        told = f"{of}{one.alarm.title}, since step {state.raised[one.key]}"
        lines.append(Text.assemble((f"{one.alarm.name}: ", "bold red"), told))
    lines = lines or [Text("none is raised", style="green")]
    counts = {kind: count for kind, count in state.incident_counts.items() if kind not in ("alarm", "alarm_over")}
    if counts:
        words = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        lines.append(Text(f"incidents: {words}", style="yellow"))
    for incident in [one for one in state.incidents if one.kind in counts][-2:]:
        text = f"{clock(incident.time)} {incident.kind}: {' '.join(incident.message.split())}"
        lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
    return Group(*lines, *(Text(note, style="yellow") for note in state.notes))


def _game(game: LastGame, most: int) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    first = max(0, len(game.moves) - most)
    for number, move in enumerate(game.moves[first:], start=first + 1):
        did = Text.assemble((f"{move['bad']} reply; instead: ", "red") if move["bad"] else "", move["did"])
        place, player = Text(str(number), style="dim"), Text(move["player"], style="bold")
        grid.add_row(place, player, did, Text(move["earned"], style="dim"))
    versions = f" · version {', '.join(map(str, game.versions))}" if game.versions else ""
    heading = Text(f"{game.outcome} · {game.deal}{versions}")
    end = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in game.table.splitlines()[:_MOST_TABLE]]
    return _panel(f"last recorded game: {game.file}, --game {game.number}", Group(heading, grid, *end))
