"""The dashboard of a run; it fits the terminal on which it is printed, whatever its size."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hanabi_grpo.evaluation.evaluate import score_range
from hanabi_grpo.evaluation.smoothing import bin_means, trailing_mean
from hanabi_grpo.evaluation.tables import BEST_KNOWN
from hanabi_grpo.report.played import has_rivals, run_setup
from hanabi_grpo.report.run_views.figures import (
    EXPLOITABILITY,
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
from hanabi_grpo.runs.history import trained_presets
from hanabi_grpo.runs.validation import validation_lines
from hanabi_grpo.settings.base_models import short_names
from hanabi_grpo.texts import visible

_WIDE = 108
"""Least width, in columns, for two panels side by side."""
_NUM_PANELS = 4
_BORDER = 4
"""Columns that the border of a panel takes."""
_UNKNOWN_HEIGHT = 40
"""Height of the terminal, in lines, that is assumed where it is not known."""
_LEAST_CURVE = 4
_MOST_CURVE = 12
"""Least and largest number of lines of the score's curve."""
_LEAST_CURVE_WIDTH = 4
_CURVE_SMOOTH = 9
"""Steps of the trailing mean of the score's curve."""
_MOST_FIGURES = 11
"""Figures shown for the team, and for each player; the page of `report` shows all."""
_MOST_INCIDENTS = 2
_TITLE_WIDTH = 27
"""Characters of a figure's title; longer titles are cut."""
_LEAST_TITLE_WIDTH = 12
"""Characters of a title where values need the room."""
_VALUE_WIDTH = 9
"""Characters of a value: a small negative one, e.g. "-1.51e-08", is the longest."""
_PADDING = 3
"""Characters between a value and its curve."""
_LEAST_SPARK = 4
"""Characters of the shortest curve of a figure that is worth drawing."""
_MOST_SPARK = 40
_PHASE_STYLES = {
    "push": "magenta",
    "rollout": "cyan",
    "resample": "bright_cyan",
    "wait": "yellow",
    "recall": "blue",
    "train": "green",
}
_ALARM_INCIDENTS = ("alarm", "alarm_over")
"""Kinds of incidents that the lines of alarms cover already."""
_BRAILLE = 0x2800
"""First character of the Unicode block "Braille Patterns"."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille character, by column, and by row from above."""
_DOT_COLUMNS = 2
_DOT_ROWS = 4
_BLOCKS = "▁▂▃▄▅▆▇█"


class RunScreen:
    """A frame of the dashboard; its lower part is cut off if the terminal is too short."""

    def __init__(
        self, state: RunState, levels: Mapping[str, float] | None = None, first: int = 0
    ) -> None:
        """Prepare one frame.

        Args:
            state: The run.
            levels: Scores to compare the curve with, by name.
            first: Number of the panel on top, modulo the number of panels. A wide terminal has
                the panels side by side for 0, and below each other for others.
        """
        self.state = state
        self.levels = levels or {}
        self.first = first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the frame out for the available width and height."""
        if not self.state.rows:
            yield self._waiting()
            return
        width = options.max_width
        height = options.height
        if height is None and console.is_terminal:
            height = console.size.height
        parts = [_header(self.state), *self._body(width, height)]
        lines = console.render_lines(Group(*parts), options.update(height=None))
        if height is None or len(lines) <= height:
            yield from parts
            return
        for line in lines[: height - 1]:
            yield from line
            yield Segment.line()
        num_hidden = len(lines) - height + 1
        more = f"{num_hidden} more lines; tab shows the next panel, q quits"
        yield Text(
            more,
            style="yellow",
            no_wrap=True,
            overflow="ellipsis",
            end="",
        )

    def _waiting(self) -> RenderableType:
        """Return the frame before the first step."""
        text = "No run yet; it appears here when the trainer starts."
        if self.state.is_there:
            text = "No step yet; waiting for the trainer's first one."
        return Group(_header(self.state), Text(text, style="yellow"), *_note_lines(self.state))

    def _body(self, width: int, height: int | None) -> list[RenderableType]:
        """Return the panels, side by side if there is room and none is chosen."""
        state = self.state
        first = self.first % _NUM_PANELS
        is_wide = width >= _WIDE and first == 0
        panel_width = width // 2 if is_wide else width
        inner_width = panel_width - _BORDER
        curve_height = (height or _UNKNOWN_HEIGHT) // 5
        curve_height = min(max(curve_height, _LEAST_CURVE), _MOST_CURVE)
        score = self._score_panel(inner_width, curve_height)
        alarms = _panel("alarms", _alarms(state))
        figures = _panel(
            f"means of the last {WINDOW} steps; curves: the whole run",
            _figures(state, inner_width),
        )
        phases = _panel(f"seconds per step, last {WINDOW}", _phases(state))
        if is_wide:
            grid = Table.grid(expand=True)
            grid.add_column(ratio=1)
            grid.add_column(ratio=1)
            grid.add_row(Group(score, phases, alarms), figures)
            return [grid]
        panels: list[RenderableType] = [score, alarms, figures, phases]
        return panels[first:] + panels[:first]

    def _score_panel(self, width: int, height: int) -> Panel:
        """Return the score's curve, with the levels to compare it with below."""
        title = "mean score of the training games"
        levels = dict(self.levels)
        setup = run_setup(self.state.settings)
        metric = SCORE
        if has_rivals(self.state.settings, trained_presets(self.state.rows)):
            if series(self.state.rows, EXPLOITABILITY)[0]:
                metric = EXPLOITABILITY
                title = "exploitability, 0 in an equilibrium"
            else:
                title = "return of player_0 in training; in self-play it does not measure skill"
        elif setup is not None:
            least, greatest = score_range(setup.spec)
            title += f", {least:g} to {greatest:g}"
            if not levels and setup.spec.attainable:
                levels = {BEST_KNOWN: setup.spec.attainable}
        content = _curve(self.state, metric, width, height)
        if levels:
            texts = [f"{name} {shown(level)}" for name, level in levels.items()]
            content = Group(content, Text("  ".join(texts), style="dim"))
        validations = validation_lines(self.state.validations)
        if validations:
            content = Group(content, *(Text(line) for line in validations))
        return _panel(title, content)


def _header(state: RunState) -> RenderableType:
    """Return name, progress, versions and the state of the trainer."""
    parts: list[RenderableType] = [_title(state)]
    if state.rows:
        parts += [_progress(state), _trainer(state)]
        if state.max_steps:
            # The bar alone does not end its line.
            grid = Table.grid(expand=True)
            completed = min(state.step, state.max_steps)
            grid.add_row(ProgressBar(total=state.max_steps, completed=completed))
            parts.append(grid)
    return Group(*parts)


def _title(state: RunState) -> Text:
    """Return the run's name with its environment, preset, players and model."""
    settings = state.settings
    num_players = settings.get("HANABI_PLAYERS")
    model = short_names(str(settings.get("MODEL") or ""))
    facts = (
        settings.get("HANABI_ENV"),
        settings.get("HANABI_PRESET"),
        f"{num_players} players" if num_players else None,
        model,
    )
    texts = []
    for fact in facts:
        if fact:
            texts.append(visible(str(fact)))
    description = "  " + " · ".join(texts)
    return Text.assemble((state.name, "bold"), (description, "dim"))


def _progress(state: RunState) -> Text:
    """Return e.g. "step 3/10  played by version 2  checkpoint 3  2.0 s/step  0:00:14 left"."""
    of_steps = f"/{state.max_steps}" if state.max_steps else ""
    line = Text(f"step {state.step}{of_steps}", style="bold")
    text = f"  played by version {state.version}"
    if state.checkpoints:
        text += f"  checkpoint {state.checkpoints[-1]}"
    if state.step_seconds is not None:
        text += f"  {state.step_seconds:.1f} s/step"
    if state.seconds_left and state.trainer:
        text += f"  {duration(state.seconds_left)} left"
    return Text.assemble(line, text)


def _trainer(state: RunState) -> Text:
    """Return the training process, and when it finished its last step."""
    if state.trainer:
        line = Text(f"trainer: {state.trainer}", style="green")
    else:
        line = Text("trainer not running", style="yellow")
    if state.age is None:
        return line
    return Text.assemble(line, f"  last step {duration(state.age)} ago")


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, title_align="left")


def _curve(state: RunState, metric: str, width: int, height: int) -> RenderableType:
    """Return a metric's curve with its scale.

    The curve of a score has trailing means, because single steps are too noisy. An exploitability
    is exact, and few steps have one.

    Args:
        state: The run.
        metric: Name of the metric.
        width: Characters of a line.
        height: Lines of the curve.
    """
    steps, values = series(state.rows, metric)
    if not values:
        return Text("no value yet", style="dim")
    heights = values if metric == EXPLOITABILITY else trailing_mean(values, _CURVE_SMOOTH)
    highest = shown(max(heights))
    lowest = shown(min(heights))
    labels = [highest, *[""] * (height - 2), lowest]
    label_width = max(len(highest), len(lowest))
    room = max(_LEAST_CURVE_WIDTH, width - label_width - 1)
    num_points = _DOT_COLUMNS * room
    x = bin_means(steps, num_points)
    y = bin_means(heights, num_points)
    curve = braille_curve(list(zip(x, y, strict=True)), room, height)
    lines = []
    for label, dots in zip(labels, curve, strict=True):
        aligned_label = f"{label:>{label_width}} "
        lines.append(Text.assemble((aligned_label, "dim"), (dots, "cyan"), no_wrap=True))
    first_step = f"step {steps[0]}"
    last_width = max(1, room - len(first_step))
    scale = f"{'':{label_width + 1}}{first_step}{steps[-1]:>{last_width}}"
    return Group(*lines, Text(scale, style="dim", no_wrap=True))


def braille_curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Return a curve as lines of braille characters, each of 2 x 4 dots; rich has no charts.

    The curve goes from the lowest to the highest y.

    Args:
        points: Points (x, y), x ascending.
        width: Characters of a line.
        height: Number of lines.

    Example:
        braille_curve([(0, 0.0), (1, 1.0)], 2, 1) == ["⡠⠊"]
    """
    x_values = [x for x, _ in points]
    y_values = [y for _, y in points]
    left = min(x_values)
    high = max(y_values)
    x_span = (max(x_values) - left) or 1
    y_span = (high - min(y_values)) or 1
    last_column = _DOT_COLUMNS * width - 1
    last_row = _DOT_ROWS * height - 1
    dots = []
    for x, y in points:
        column = round((x - left) / x_span * last_column)
        row = round((high - y) / y_span * last_row)
        dots.append((column, row))
    cells = [[0] * width for _ in range(height)]
    # The first point is joined with itself, so that a single one is drawn too.
    for (column_before, row_before), (column_now, row_now) in pairwise([dots[0], *dots]):
        columns = column_now - column_before
        rows = row_now - row_before
        num_steps = max(abs(columns), abs(rows), 1)
        for step in range(1, num_steps + 1):
            column = round(column_before + columns * step / num_steps)
            row = round(row_before + rows * step / num_steps)
            dot = _DOTS[column % _DOT_COLUMNS][row % _DOT_ROWS]
            cells[row // _DOT_ROWS][column // _DOT_COLUMNS] |= dot
    lines = []
    for line in cells:
        lines.append("".join(chr(_BRAILLE + cell) for cell in line))
    return lines


def spark_line(values: Sequence[float], width: int) -> str:
    """Return one row of blocks from the lowest to the highest value.

    Where there are more values than characters, their means are drawn.

    Example:
        spark_line([0.0, 7.0], 8) == "▁█"
    """
    if not values:
        return ""
    means = bin_means(values, width)
    low = min(means)
    span = (max(means) - low) or 1
    highest_block = len(_BLOCKS) - 1
    line = ""
    for mean in means:
        block = round((mean - low) / span * highest_block)
        line += _BLOCKS[block]
    return line


def _figures(state: RunState, width: int) -> Group:
    """Return the table of the team's figures and that of the players'."""
    prefix_of_player = {name: f"{name}/" for name in players(state.rows)}
    return Group(
        _figure_table(state, {"team": ""}, team_figures(state.rows), width),
        _figure_table(state, prefix_of_player, player_figures(state.rows), width),
    )


def _figure_table(
    state: RunState,
    prefixes: Mapping[str, str],
    titles: Mapping[str, str],
    width: int,
) -> Table:
    """Return a table with a row per figure, and its curves where there is room.

    Args:
        state: The run.
        prefixes: Prefix of the metrics of each column, by the column's heading.
        titles: Title of each figure.
        width: Characters of a line.
    """
    value_room = len(prefixes) * (_VALUE_WIDTH + 1)
    title_width = min(_TITLE_WIDTH, max(_LEAST_TITLE_WIDTH, width - value_room - 1))
    room_of_column = (width - title_width) // max(1, len(prefixes))
    spark_width = min(room_of_column - _VALUE_WIDTH - _PADDING, _MOST_SPARK)
    has_sparks = spark_width >= _LEAST_SPARK
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", width=title_width, no_wrap=True)
    for heading in prefixes:
        table.add_column(heading, justify="right", no_wrap=True, width=_VALUE_WIDTH)
        if has_sparks:
            table.add_column("", no_wrap=True, width=spark_width, style="cyan")
    for figure, title in list(titles.items())[:_MOST_FIGURES]:
        cells = []
        for prefix in prefixes.values():
            metric = f"{prefix}{figure}"
            cells.append(shown(recent(state.rows, metric)))
            if has_sparks:
                _, values = series(state.rows, metric)
                cells.append(spark_line(values, spark_width))
        table.add_row(title, *cells)
    return table


def _phases(state: RunState) -> RenderableType:
    """Return the phases of a step as consecutive bars."""
    seconds_of_phases = recent_phases(state.rows)
    if not seconds_of_phases:
        return Text("no phase times recorded", style="dim")
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    total = sum(seconds_of_phases.values()) or 1.0
    begin = 0.0
    for name, seconds in seconds_of_phases.items():
        end = begin + seconds
        bar = Bar(size=total, begin=begin, end=end, color=_PHASE_STYLES[name])
        table.add_row(name, f"{seconds:.2f}", bar)
        begin = end
    return table


def _alarms(state: RunState) -> RenderableType:
    """Return the raised alarms, the last incidents, and what could not be read."""
    lines = []
    for reading in state.readings[: len(state.raised)]:
        subject = f"{visible(reading.subject)}: " if reading.subject else ""
        message = f"{subject}{reading.alarm.title}, since step {state.raised[reading.key]}"
        lines.append(Text.assemble((f"{reading.alarm.name}: ", "bold red"), message))
    if not lines:
        lines.append(Text("none", style="green"))
    lines += _incident_lines(state)
    lines += _note_lines(state)
    return Group(*lines)


def _note_lines(state: RunState) -> list[Text]:
    """Return the notes about what could not be read."""
    return [Text(note, style="yellow") for note in state.notes]


def _incident_lines(state: RunState) -> list[Text]:
    """Return the counts of incidents and the last ones."""
    incidents = []
    for incident in state.incidents:
        if incident.kind not in _ALARM_INCIDENTS:
            incidents.append(incident)
    if not incidents:
        return []
    counts = []
    for kind, count in sorted(state.incident_counts.items()):
        if kind not in _ALARM_INCIDENTS:
            counts.append(f"{kind} {count}")
    lines = [Text(f"incidents: {', '.join(counts)}", style="yellow")]
    for incident in incidents[-_MOST_INCIDENTS:]:
        message = " ".join(incident.message.split())
        text = f"{clock(incident.time)} {incident.kind}: {message}"
        lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
    return lines
