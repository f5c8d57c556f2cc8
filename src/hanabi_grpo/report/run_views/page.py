"""A run as one HTML file that needs nothing else: no network, no server, and to be read no script either.

Every text goes through the template, which escapes it. The replays are the whole page of `replays.page` in a frame of
its own; a content policy names the hashes of both styles and of the replays' script, so that nothing else can run.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hanabi_grpo.envs.hanabi.dynamics import AlarmWatch
from hanabi_grpo.envs.hanabi.replays.selection import spread
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.replays.page import render_page as render_replays
from hanabi_grpo.report.run_views.curves import Chart, area_chart, line_chart
from hanabi_grpo.report.run_views.evaluations import SameDeals, evaluation_tables, evaluations_by_deals
from hanabi_grpo.report.run_views.figures import PLAYER, SCORE, TEAM, duration, phases, players, recent, series, shown
from hanabi_grpo.report.run_views.run_watch import read_run
from hanabi_grpo.report.run_views.state import RunState
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.advantages import ESTIMATORS, choose_estimator
from hanabi_grpo.training.advantages.recorded import turn_advantages

_PACKAGE = "hanabi_grpo.report.run_views"
_MOST_REPLAY_BYTES = 1_000_000
"""Of the replays' page; browsers refuse frames of some megabytes."""
_MOST_INCIDENTS = 100
_PHASES = ("push", "rollout", "wait", "recall", "train")
_PLACES = ("HANABI_HOST", "PORT", "VLLM_SERVER_HOST", "VLLM_SERVER_PORT")
"""Settings that name machines; a page is passed on."""
_CODE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def run_page(folder: Path, *, num_replays: int = 6) -> tuple[str, list[str]]:
    """Return the page of a run folder, and notes about what is not in it.

    Args:
        folder: Run folder.
        num_replays: Most games of the newest recorded step that are shown, from the worst to the best; 0: none.

    Raises:
        SettingsError: There is no run, or it has no step.
    """
    state = read_run(folder)
    home = run_home(folder)
    notes = [*state.notes]
    evaluations, problems = evaluations_by_deals(home)
    sheets, others = evaluation_tables(evaluations)
    notes += problems + others
    replays = ""
    if num_replays:
        try:
            replays = _replays(home, state, num_replays)
        except SettingsError as error:
            # Games that cannot be read are said by the look at the folder already.
            notes += [] if state.notes else [visible(str(error))]
    style = resources.files(_PACKAGE).joinpath("templates", "run.css").read_text(encoding="utf-8")
    inner = _CODE.findall(replays)
    watch = AlarmWatch()
    changes = [change for row in state.rows for change in watch.update(row)]
    environment = Environment(
        loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("run.html.j2").render(
        title=state.name,
        facts=_facts(state, evaluations),
        style=style,
        style_hashes=[_hash(style), *(_hash(code) for kind, code in inner if kind == "style")],
        script_hashes=[_hash(code) for kind, code in inner if kind == "script"],
        score=line_chart(
            "score, mean of the training games",
            {"score": series(state.rows, SCORE)},
            levels={visible(name): mean for one in evaluations[:1] for name, mean in one.levels.items()},
        ),
        team=_charts(state, [one for one in TEAM if one.name != SCORE], [""]),
        players=_charts(state, PLAYER, [f"{name}/" for name in players(state.rows)]),
        phases=_phase_chart(state),
        sheets=sheets,
        raised=[(one.name, one.subject, one.since, one.title) for one in state.alarms],
        changes=[(change.step, change.since is None, visible(change.message)) for change in changes],
        counts=sorted(state.incident_counts.items()),
        incidents=[_incident(one.time, one.kind, one.step, one.message, folder, state) for one in state.incidents][
            -_MOST_INCIDENTS:
        ],
        # A frame from a data: address may keep its place in its own address, one from srcdoc may not.
        replays=base64.b64encode(replays.encode()).decode() if replays else "",
        settings=_settings(state.settings),
        notes=[_private(note, folder, state) for note in notes],
    )
    return page, notes


def _facts(state: RunState, evaluations: Sequence[SameDeals]) -> list[tuple[str, str]]:
    settings = state.settings
    first = evaluations[:1]
    seconds = [value for value in series(state.rows, "step_time")[1]]
    facts = {
        **{f"score on {one.results[-1].num_deals} deals of {one.results[-1].suite}": one.lead for one in first},
        **{name: f"{mean:.2f}" for one in first for name, mean in one.levels.items()},
        "steps": f"{state.step}" + (f" of {state.max_steps}" if state.max_steps else ""),
        "score of the last 10 steps": shown(recent(state.rows, SCORE)),
        "board": settings.get("HANABI_PRESET"),
        "players": settings.get("HANABI_PLAYERS"),
        "model": _last_part(settings.get("MODEL")),
        "time": duration(sum(seconds)) if seconds else None,
        "checkpoints": ", ".join(map(str, state.checkpoints)) or None,
    }
    return [(visible(name), visible(str(value))) for name, value in facts.items() if value is not None]


def _charts(state: RunState, figures: Sequence[Any], prefixes: Sequence[str]) -> list[Chart]:
    found = []
    for one in figures:
        lines = {prefix.rstrip("/") or one.title: series(state.rows, f"{prefix}{one.name}") for prefix in prefixes}
        chart = line_chart(one.title, lines, width=360, height=170)
        found += [chart] if chart else []
    return found


def _phase_chart(state: RunState) -> Chart | None:
    timed = [(int(row["step"]), found) for row in state.rows if (found := phases(row))]
    names = [name for name in _PHASES if any(name in found for _, found in timed)]
    layers = {name: [found.get(name, 0.0) for _, found in timed] for name in names}
    return area_chart("seconds a step", [step for step, _ in timed], layers)


def _replays(home: Path, state: RunState, most: int) -> str:
    if not (home / "episodes").is_dir():
        return ""
    recordings, _ = read_recordings(recording_files(home))
    name, scale = state.settings.get("HANABI_ADVANTAGE"), state.settings.get("HANABI_ADVANTAGE_SCALE")
    if name not in ESTIMATORS or scale not in (None, "std", "none"):
        name, scale = Settings().advantage, None
    estimator = choose_estimator(name, scale)
    advantages = dict(zip((one.number for one in recordings), turn_advantages(recordings, estimator), strict=True))
    while most:
        chosen = [make_timeline(one, advantages[one.number]) for one in spread(recordings, most)]
        title = f"{state.name}, {recordings[0].source}: {len(chosen)} of {len(recordings)} games"
        page = render_replays(chosen, title=title, estimator=estimator.name)
        if len(page.encode()) <= _MOST_REPLAY_BYTES:
            return page
        most //= 2
    raise SettingsError("replays: even one game is too large for a frame; hanabi-grpo view RUN --html shows it.")


def _incident(
    seconds: float | None, kind: str, step: int | None, message: str, folder: Path, state: RunState
) -> tuple[str, str, str, str]:
    try:
        when = "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        when = ""
    return when, kind, "" if step is None else str(step), _private(message, folder, state)


def _settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown_ones = {name: value for name, value in settings.items() if name not in _PLACES and value not in (None, "")}
    return [(visible(name), _without_paths(visible(_text(value)))) for name, value in shown_ones.items()]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_paths(text: str) -> str:
    """Return a setting whose absolute paths are cut to their last part: whole ones name machines and people."""
    return ",".join(
        f"…/{_last_part(part)}" if part.strip().startswith(("/", "~", "file:")) else part for part in text.split(",")
    )


def _private(text: str, folder: Path, state: RunState) -> str:
    output = state.settings.get("OUTPUT_DIR")
    for path in (str(folder.resolve()), str(folder), output if isinstance(output, str) else ""):
        if "/" in path:
            text = text.replace(path, state.name)
    return text


def _last_part(value: object) -> str | None:
    return None if value is None else str(value).rstrip("/").rpartition("/")[2]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
