"""`hanabi-grpo dynamics`: how a run's play changed, and what its alarms say."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from hanabi_grpo.charts.dynamics import draw_dynamics
from hanabi_grpo.commands.console import make_console
from hanabi_grpo.dynamics import AlarmChange, AlarmWatch, read_history
from hanabi_grpo.errors import SettingsError


def dynamics(run: Path, *, out: Path | None) -> None:
    """Print which alarms were raised and where each figure stands, and draw them.

    Everything is computed anew from the figures in `metrics.jsonl`, so a run that is going on, or that had other
    thresholds, can be looked at too.

    Args:
        run: Run folder, or its `metrics.jsonl`.
        out: The picture; None: `dynamics.png` in the run folder.

    Raises:
        SettingsError: Nothing to read, or the picture cannot be written.
    """
    path = run / "metrics.jsonl" if run.is_dir() else run
    if not path.is_file():
        raise SettingsError(f"{path}: no such file; give the folder of a run.")
    try:
        rows = read_history(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); give the folder of a run.") from error
    if not rows:
        raise SettingsError(f"{path}: holds no step; the run ended before its first one, or this is another file.")
    picture = out or path.with_name("dynamics.png")
    console = make_console()
    watch = AlarmWatch()
    changes: list[AlarmChange] = []
    standing: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in rows:
        changes += watch.update(row)
        for one in watch.readings:
            level = "–" if one.level is None else f"{'<' if one.alarm.below else '>'} {one.level:.3g}"
            standing[one.alarm.name, one.subject] = (one.alarm.title, f"{one.mean:.3g}", level)
    draw_dynamics(picture, rows, title=f"{path.parent.resolve().name}: {len(rows)} steps")
    table = Table(title=Text(f"After step {rows[-1]['step']}"), title_justify="left")
    for column in ("alarm", "of", "figure"):
        table.add_column(column, overflow="fold")
    for column in ("last 10", "raised", "now"):
        table.add_column(column, justify="right", no_wrap=True)
    for (name, subject), cells in standing.items():
        since = watch.raised.get((name, subject))
        now = Text("quiet") if since is None else Text(f"since {since}", style="red")
        table.add_row(*map(Text, (name, subject, *cells)), now)
    console.print(table)
    for change in changes:
        console.print(f"step {change.step}: {change.message}", markup=False, soft_wrap=True)
    if not changes:
        console.print("No alarm was raised.")
    console.print(f"picture: {picture}", markup=False, soft_wrap=True)
