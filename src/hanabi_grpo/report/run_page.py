"""The page of a run: result, curves, evaluations, alarms, incidents, replays and settings."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import islice
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.run import (
    BELIEFS_CHART,
    PHASES_CHART,
    SCORE_CHART,
    VALIDATION_CHART,
    small_figure,
)
from hanabi_grpo.report.games import sample_page
from hanabi_grpo.report.page import render
from hanabi_grpo.report.run_report import RunReport
from hanabi_grpo.report.run_views.figures import (
    EXPLOITABILITY,
    SCORE,
    WINDOW,
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
from hanabi_grpo.settings.base_models import short_names
from hanabi_grpo.settings.variables import typed
from hanabi_grpo.texts import visible

_MOST_REPLAY_BYTES = 1_000_000
"""Size of the replays' page; browsers refuse frames of some megabytes."""
_MOST_GAMES = 6
_MOST_CHARTS = 60
"""Small charts of players, and as many of the team; each takes a fifth of a second."""
_MOST_INCIDENTS = 100
_MOST_ALARMS = 8
_NUM_FIRST = 5
"""Figures of players that are always visible, beside the phases; the others are behind "more"."""
_MACHINE_SETTINGS = frozenset(
    {"HANABI_HOST", "HANABI_PARTNER_URLS", "PORT", "VLLM_SERVER_HOST", "VLLM_SERVER_PORT"}
)
"""Settings that name machines; they are left out, since a page is meant to be shared."""
_PATH_PREFIXES = ("/", "~")
"""Prefixes of an absolute path in a setting."""
_PARTS = re.compile(r"([,;:=\n])")
"""What separates the parts of a setting, e.g. in "player_0=/models/a,player_1=/models/b"."""


def run_page(report: RunReport) -> tuple[str, list[str]]:
    """Return the page of a run.

    Six games of the newest recorded step are shown, or as many as fit, from the worst to the best.

    Returns:
        The page, and notes about what is missing from it.
    """
    state = report.state
    folder = report.folder
    rows = state.rows
    notes = list(report.notes)
    replays = ""
    try:
        replays = _replays(run_home(folder), state)
    except SettingsError as error:
        notes.append(visible(str(error)))
    player_prefixes = [f"{name}/" for name in players(rows)]
    player_titles = _first(player_figures(rows), notes)
    small_charts = _charts(state, player_titles, player_prefixes)
    first_charts = small_charts[:_NUM_FIRST]
    phases_chart = _drawn(report, PHASES_CHART, "seconds per step")
    if phases_chart is not None:
        first_charts.append(phases_chart)
    curves_chart = _drawn(report, VALIDATION_CHART, "validation, a panel for each curve")
    if curves_chart is not None:
        first_charts.append(curves_chart)
    beliefs_chart = _drawn(report, BELIEFS_CHART, "beliefs about hidden cards, bits per card")
    if beliefs_chart is not None:
        first_charts.append(beliefs_chart)
    team_titles = team_figures(rows)
    team_titles.pop(SCORE, None)
    team_titles = _first(team_titles, notes)
    changes = []
    for change in state.changes:
        changes.append((change.step, change.since is None, visible(change.message)))
    page = render(
        "run.html.j2",
        frame=replays,
        title=state.name,
        lead=report.lead,
        validations=report.validation_lines,
        facts=_facts(report),
        score=_drawn(report, SCORE_CHART, _described(state, [_curve_metric(state)])),
        curve_caption=report.pictures.curve_caption,
        first=first_charts,
        more=[*small_charts[_NUM_FIRST:], *_charts(state, team_titles, [""])],
        sheets=report.sheets,
        alarms=report.alarm_sheet(_MOST_ALARMS),
        changes=changes,
        counts=sorted(state.incident_counts.items()),
        incidents=_incidents(state, folder),
        settings=_settings(state.settings),
        notes=[_private(note, folder, state) for note in notes],
    )
    return page, notes


def _curve_metric(state: RunState) -> str:
    """Return the metric that the large chart shows."""
    steps, _ = series(state.rows, EXPLOITABILITY)
    return EXPLOITABILITY if steps else SCORE


def _facts(report: RunReport) -> list[tuple[str, str]]:
    """Return the facts at the top of the page: names and texts."""
    state = report.state
    settings = state.settings
    _, step_seconds = series(state.rows, "step_time")
    steps = f"{state.step} of {state.max_steps}" if state.max_steps else str(state.step)
    facts = {
        "steps": steps,
        **_outcome_fact(report),
        "environment": settings.get("HANABI_ENV"),
        "preset": settings.get("HANABI_PRESET"),
        "players": settings.get("HANABI_PLAYERS"),
        "model": short_names(str(settings.get("MODEL") or "")) or None,
        "time": duration(sum(step_seconds)) if step_seconds else None,
        "checkpoints": ", ".join(map(str, state.checkpoints)) or None,
    }
    texts = []
    for name, value in facts.items():
        if value is not None:
            texts.append((visible(name), visible(str(value))))
    return texts


def _outcome_fact(report: RunReport) -> dict[str, str]:
    """Return how well the players play now; {} if that was not measured."""
    rows = report.state.rows
    if not report.is_versus:
        return {f"score of the last {WINDOW} steps": shown(recent(rows, SCORE))}
    _, values = series(rows, EXPLOITABILITY)
    return {EXPLOITABILITY: shown(values[-1])} if values else {}


def _first(titles: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """Return as many figures as a page may have, and note how many are left out."""
    first = dict(islice(titles.items(), _MOST_CHARTS))
    num_left_out = len(titles) - len(first)
    if num_left_out:
        notes.append(f"{num_left_out} metrics of metrics.jsonl are left out: no room on this page.")
    return first


def _charts(
    state: RunState, titles: Mapping[str, str], prefixes: Sequence[str]
) -> list[dict[str, str]]:
    """Return small charts of the figures that the rows have.

    Args:
        state: The run.
        titles: Title of each figure.
        prefixes: Prefixes of the metrics that share a chart, e.g. "player_0/"; "": the team's.

    Returns:
        Per chart its title, the address of the image, and alternative text.
    """
    charts = []
    for figure, title in titles.items():
        metrics = [f"{prefix}{figure}" for prefix in prefixes]
        lines = {}
        for metric in metrics:
            steps, values = series(state.rows, metric)
            if steps:
                lines[metric.partition("/")[0]] = (steps, values)
        if lines:
            address = data_address(small_figure(lines))
            description = _described(state, metrics)
            charts.append({"title": title, "address": address, "words": description})
    return charts


def _drawn(report: RunReport, name: str, description: str) -> dict[str, str] | None:
    """Return one of the large charts; None if the rows have no figures for it."""
    try:
        figure = report.pictures.draw(name)
    except SettingsError:
        return None
    return {"title": description, "address": data_address(figure), "words": description}


def _described(state: RunState, metrics: Sequence[str]) -> str:
    """Return a description of curves, e.g. "player_0/reward from 1.1 to 2.3"."""
    parts = []
    for metric in metrics:
        _, values = series(state.rows, metric)
        if values:
            parts.append(f"{metric} from {shown(values[0])} to {shown(values[-1])}")
    return ", ".join(parts)


def _incidents(state: RunState, folder: Path) -> list[tuple[str, str, int | None, str]]:
    """Return the last incidents: time, kind, step and message."""
    rows = []
    for incident in state.incidents[-_MOST_INCIDENTS:]:
        message = _private(incident.message, folder, state)
        rows.append((clock(incident.time, UTC), incident.kind, incident.step, message))
    return rows


def _replays(home: Path, state: RunState) -> str:
    """Return the page of the replays; "" where no game was recorded.

    Raises:
        SettingsError: Even one game is too large for a frame, or the games cannot be read.
    """
    if not (home / "episodes").is_dir():
        return ""
    recordings, _ = read_recordings(recording_files(home))
    title = f"{state.name}, {recordings[0].source}"
    num_games = _MOST_GAMES
    while num_games:
        page = sample_page(recordings, num_games, title=title, settings=state.settings)
        if len(page.encode()) <= _MOST_REPLAY_BYTES:
            return page
        num_games //= 2
    raise SettingsError(
        "replays: even one game is too large for this page; see hanabi-grpo view RUN --html."
    )


def _settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts of settings.

    Absolute paths are cut to their last part, since whole ones name machines and people.
    """
    texts = []
    for name, value in settings.items():
        if name in _MACHINE_SETTINGS:
            continue
        text = visible(typed(value))
        if text:
            # The separators themselves are never paths.
            parts = [_shortened(part) for part in _PARTS.split(text)]
            texts.append((visible(name), "".join(parts)))
    return texts


def _shortened(text: str) -> str:
    """Return the last part of an absolute path, e.g. "…/tiny"; other texts as they are."""
    if text.strip().startswith(_PATH_PREFIXES):
        return f"…/{_last_part(text)}"
    return text


def _private(text: str, folder: Path, state: RunState) -> str:
    """Return a text in which the path of the run's folder is replaced by its name."""
    output_dir = state.settings.get("OUTPUT_DIR")
    paths = [str(folder.resolve()), str(folder)]
    if isinstance(output_dir, str):
        paths.append(output_dir)
    for path in paths:
        if "/" in path:
            text = text.replace(path, state.name)
    return text


def _last_part(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
