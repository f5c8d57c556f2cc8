"""`hanabi-grpo dynamics`: how a run's play changed, and what its alarms say."""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from hanabi_grpo.commands.console import make_console, print_json
from hanabi_grpo.envs.hanabi.dynamics import AlarmChange, AlarmWatch, Reading, read_history
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.dynamics import draw_dynamics
from hanabi_grpo.runs.run_folder import run_home


def dynamics(run: Path, *, out: Path | None, as_json: bool = False) -> None:
    """Print which alarms were raised and where each figure stands, and draw them.

    Everything is computed anew from the figures in `metrics.jsonl`, so a run that is going on, or that had other
    thresholds, can be looked at too.

    Args:
        run: Run folder, or its `metrics.jsonl`.
        out: The picture; None: `dynamics.png` in the run folder.
        as_json: One JSON document on standard output instead of the table.

    Raises:
        SettingsError: Nothing to read, or the picture cannot be written.
    """
    path = run_home(run) / "metrics.jsonl" if run.is_dir() else run
    if not path.is_file():
        raise SettingsError(f"{path}: no such file; give the folder of a run.")
    try:
        rows = read_history(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); give the folder of a run.") from error
    if not rows:
        raise SettingsError(f"{path}: holds no step; the run ended before its first one, or this is another file.")
    picture = out or path.with_name("dynamics.png")
    watch = AlarmWatch()
    changes: list[AlarmChange] = []
    standing: dict[tuple[str, str], Reading] = {}
    for row in rows:
        changes += watch.update(row)
        standing.update({(one.alarm.name, one.subject): one for one in watch.readings})
    draw_dynamics(picture, rows, title=f"{path.parent.resolve().name}: {len(rows)} steps")
    step = int(rows[-1]["step"])
    if as_json:
        alarms = [_alarm(one, watch.raised.get(key)) for key, one in standing.items()]
        found = {"step": step, "alarms": alarms, "changes": list(map(_change, changes)), "picture": str(picture)}
        print_json(found)
        return
    console = make_console()
    table = Table(title=Text(f"After step {step}"), title_justify="left")
    for column in ("alarm", "of", "figure"):
        table.add_column(column, overflow="fold")
    for column in ("last 10", "raised", "now"):
        table.add_column(column, justify="right", no_wrap=True)
    for (name, subject), one in standing.items():
        level = "–" if one.level is None else f"{'<' if one.alarm.below else '>'} {one.level:.3g}"
        since = watch.raised.get((name, subject))
        now = Text("quiet") if since is None else Text(f"since {since}", style="red")
        table.add_row(*map(Text, (name, subject, one.alarm.title, f"{one.mean:.3g}", level)), now)
    console.print(table)
    for change in changes:
        console.print(f"step {change.step}: {change.message}", markup=False, soft_wrap=True)
    if not changes:
        console.print("No alarm was raised.")
    console.print(f"picture: {picture}", markup=False, soft_wrap=True)


def _alarm(reading: Reading, since: int | None) -> dict[str, Any]:
    alarm = reading.alarm
    return {
        "alarm": alarm.name,
        "of": reading.subject,
        "figure": alarm.title,
        "last_10": reading.mean,
        "raised_below" if alarm.below else "raised_above": reading.level,
        "raised_since": since,
    }


def _change(change: AlarmChange) -> dict[str, Any]:
    return {
        "step": change.step,
        "alarm": change.alarm.name,
        "of": change.subject,
        "is": "raised" if change.since is None else "over",
        "value": change.value,
        "level": change.level,
        "message": change.message,
    }
