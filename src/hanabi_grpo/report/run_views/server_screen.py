"""The dashboard of a rollout server."""

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.hanabi.dynamics import number
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.report.run_views.figures import duration, shown
from hanabi_grpo.report.run_views.screen import curve_panel
from hanabi_grpo.report.run_views.server_watch import ServerState

_LOG_LINES = 12
_LAST = 10
"""Versions behind the figures beside the curve."""


class ServerScreen:
    """A frame of the dashboard; the log gives way where the terminal is low."""

    def __init__(self, state: ServerState) -> None:
        """Prepare the frame of one look."""
        self.state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the frame out for the width and height at hand."""
        state, height = self.state, options.height
        parts: list[RenderableType] = [_header(state)]
        if state.versions:
            versions = list(state.versions)
            scores = [games.score for games in state.versions.values()]
            parts.append(curve_panel("score of training games by version", versions, scores, 8))
        if state.health:
            parts.append(Panel(_facts(state), title="server", title_align="left"))
        used = sum(len(console.render_lines(part, options.update(height=None))) for part in parts)
        yield from parts
        room = _LOG_LINES if height is None else min(_LOG_LINES, height - used - 2)
        if state.lines and room > 0:
            lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in state.lines[-room:]]
            yield Panel(Group(*lines), title="log", title_align="left")


def _header(state: ServerState) -> RenderableType:
    title = Text(visible(state.url), style="bold")
    if state.identity:
        run = state.identity.get("run")
        trainer = f"run {_text(run)}" if run else "no trainer"
        title.append(f"  {trainer} · {_text(state.identity.get('model'))}", style="dim")
    if not state.problem:
        return title
    return Group(title, Text(state.problem, style="red"))


def _facts(state: ServerState) -> Table:
    health, last = state.health, list(state.versions.values())[-_LAST:]
    served = health.get("versions")
    facts = {
        "serves": ", ".join(f"{_text(name)}@{_text(version)}" for name, version in served.items())
        if isinstance(served, dict) and served
        else "the base model alone",
        "games in flight": _text(health.get("games_in_flight")),
        "games played": _text(health.get("games_played")),
        "played again, given up": f"{_text(health.get('games_retried'))}, {_text(health.get('games_failed'))}",
        "up for": duration(number(health.get("uptime_s")) or 0.0),
    }
    if last:
        games = sum(one.games for one in last)
        facts |= {
            f"last {len(last)} versions: score": shown(sum(one.points for one in last) / games),
            "illegal, unparsable a game": f"{shown(sum(one.illegal for one in last) / games)}, "
            f"{shown(sum(one.unparsable for one in last) / games)}",
            "seconds of a step's games": shown(sum(one.seconds for one in last) / len(last)),
        }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _text(value: object) -> str:
    return "–" if value is None else visible(str(value))
