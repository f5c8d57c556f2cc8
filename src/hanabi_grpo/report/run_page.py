"""The page of a run: the result, curves, evaluations, alarms, incidents, games to step through,
settings.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.run import small_figure
from hanabi_grpo.report.games import sample_page
from hanabi_grpo.report.page import render
from hanabi_grpo.report.run_report import RunReport
from hanabi_grpo.report.run_views.figures import (
    SCORE,
    clock,
    duration,
    player_figures,
    players,
    recent,
    series,
    shown,
    team_figures,
)
from hanabi_grpo.report.run_views.run_watch import RunState
from hanabi_grpo.rollout.recordings import read_recordings, recording_files
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.settings.variables import typed

_MOST_REPLAY_BYTES = 1_000_000
"""Of the replays' page; browsers refuse frames of some megabytes."""
_MOST_GAMES = 6
_MOST_INCIDENTS = 100
_MOST_ALARMS = 8
_NUM_FIRST = 5
"""Figures of players that are shown at once, beside the phases; the others behind "more"."""
_PLACES = ("HANABI_HOST", "PORT", "VLLM_SERVER_HOST", "VLLM_SERVER_PORT")
"""Settings that name machines; a page is passed on."""


def run_page(report: RunReport) -> tuple[str, list[str]]:
    """Return the page of a run, and notes about what is not in it.

    Six games of the newest recorded step are shown, or as many as fit, from the worst to the best.
    """
    state, folder = report.state, report.folder
    notes, replays = [*report.notes], ""
    try:
        replays = _replays(run_home(folder), state)
    except SettingsError as error:
        notes.append(visible(str(error)))
    rows = state.rows
    small = _pictures(state, player_figures(rows), [f"{name}/" for name in players(rows)])
    first, more = small[:_NUM_FIRST], small[_NUM_FIRST:]
    team = {name: title for name, title in team_figures(rows).items() if name != SCORE}
    page = render(
        "run.html.j2",
        frame=replays,
        title=state.name,
        lead=report.lead,
        validation=report.validation,
        facts=_facts(state),
        score=_drawn(report, "score", _words(state, [SCORE])),
        first=[*first, *filter(None, [_drawn(report, "phases", "seconds a step")])],
        more=[*more, *_pictures(state, team, [""])],
        sheets=report.sheets,
        alarms=report.alarm_sheet(_MOST_ALARMS),
        changes=[
            (change.step, change.since is None, visible(change.message)) for change in state.changes
        ],
        counts=sorted(state.incident_counts.items()),
        incidents=[
            (clock(one.time, UTC), one.kind, one.step, _private(one.message, folder, state))
            for one in state.incidents[-_MOST_INCIDENTS:]
        ],
        settings=_settings(state.settings),
        notes=[_private(note, folder, state) for note in notes],
    )
    return page, notes


def _facts(state: RunState) -> list[tuple[str, str]]:
    settings = state.settings
    seconds = series(state.rows, "step_time")[1]
    facts = {
        "steps": f"{state.step}" + (f" of {state.max_steps}" if state.max_steps else ""),
        "score of the last 10 steps": shown(recent(state.rows, SCORE)),
        "environment": settings.get("HANABI_ENV"),
        "preset": settings.get("HANABI_PRESET"),
        "players": settings.get("HANABI_PLAYERS"),
        "model": _last_part(settings.get("MODEL")),
        "time": duration(sum(seconds)) if seconds else None,
        "checkpoints": ", ".join(map(str, state.checkpoints)) or None,
    }
    return [
        (visible(name), visible(str(value))) for name, value in facts.items() if value is not None
    ]


def _pictures(
    state: RunState, figures: Mapping[str, str], prefixes: Sequence[str]
) -> list[dict[str, str]]:
    """Return small pictures of those figures that the rows have, with words for those who do not
    see them.
    """
    found = []
    for figure, title in figures.items():
        names = [f"{prefix}{figure}" for prefix in prefixes]
        lines = {
            name.partition("/")[0]: line for name in names if (line := series(state.rows, name))[0]
        }
        if lines:
            address = data_address(small_figure(lines))
            found.append({"title": title, "address": address, "words": _words(state, names)})
    return found


def _drawn(report: RunReport, name: str, words: str) -> dict[str, str] | None:
    try:
        return {"title": words, "address": data_address(report.pictures.draw(name)), "words": words}
    except SettingsError:
        return None


def _words(state: RunState, names: Sequence[str]) -> str:
    lines = ((name, series(state.rows, name)[1]) for name in names)
    return ", ".join(
        f"{name} from {shown(values[0])} to {shown(values[-1])}" for name, values in lines if values
    )


def _replays(home: Path, state: RunState) -> str:
    if not (home / "episodes").is_dir():
        return ""
    most = _MOST_GAMES
    recordings, _ = read_recordings(recording_files(home))
    title = f"{state.name}, {recordings[0].source}"
    while most:
        page = sample_page(recordings, most, title=title, settings=state.settings)
        if len(page.encode()) <= _MOST_REPLAY_BYTES:
            return page
        most //= 2
    raise SettingsError(
        "replays: even one game is too large for a frame; hanabi-grpo view RUN --html shows it."
    )


def _settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts; absolute paths are cut to their last part, since whole ones name
    machines and people.
    """
    found = []
    for name, text in (
        (name, typed(value)) for name, value in settings.items() if name not in _PLACES
    ):
        parts = visible(text).split(",")
        cut = (
            f"…/{_last_part(one)}" if one.strip().startswith(("/", "~", "file:")) else one
            for one in parts
        )
        found += [(visible(name), ",".join(cut))] if text else []
    return found


def _private(text: str, folder: Path, state: RunState) -> str:
    output = state.settings.get("OUTPUT_DIR")
    for path in (str(folder.resolve()), str(folder), output if isinstance(output, str) else ""):
        if "/" in path:
            text = text.replace(path, state.name)
    return text


def _last_part(value: object) -> str | None:
    return None if value is None else str(value).rstrip("/").rpartition("/")[2]
