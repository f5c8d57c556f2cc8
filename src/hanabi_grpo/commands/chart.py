"""`hanabi-grpo chart`: the pictures of a run as PNG and SVG."""

from pathlib import Path
from typing import Annotated

import typer


def chart(
    run: Annotated[Path, typer.Argument(help="Run folder; of a run that is going on too.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; RUN/charts when left out.")] = None,
) -> None:
    """Draw a run: score, players and phase times as PNG and SVG, and what the alarms watch as PNG.

    Charts without data are skipped with a notice. The score has level lines where evaluations lie in the run folder.
    """
    from hanabi_grpo.commands.console import make_console
    from hanabi_grpo.envs.hanabi.rules import make_spec
    from hanabi_grpo.errors import SettingsError
    from hanabi_grpo.report.charts.run_curves import draw_run
    from hanabi_grpo.report.run_views.evaluations import evaluations_by_deals
    from hanabi_grpo.report.run_views.run_watch import read_run
    from hanabi_grpo.runs.run_folder import run_home

    state = read_run(run)
    folder = out or run_home(run) / "charts"
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"--out {folder}: is a file; give a folder.")
    preset, num_players = state.settings.get("HANABI_PRESET"), state.settings.get("HANABI_PLAYERS")
    try:
        most = make_spec(preset, num_players).reachable_max if preset and num_players else None
    except (SettingsError, ValueError, TypeError):
        # A board of another version; only a label needs it.
        most = None
    console = make_console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out {folder}: cannot be made ({error.strerror}); choose another.") from error
    files = {name: [folder / f"{name}.{kind}" for kind in ("png", "svg")] for name in ("score", "players", "phases")}
    files["dynamics"] = [folder / "dynamics.png"]
    title = f"{state.name}: {len(state.rows)} steps"
    evaluations, _ = evaluations_by_deals(run_home(run))
    levels = evaluations[0].levels if evaluations else {}
    left_out = draw_run(files, state.rows, title=title, most_points=most, levels=levels)
    for name, paths in files.items():
        if name in left_out:
            say(f"no picture {name}: {left_out[name]}")
            continue
        for path in paths:
            say(f"picture: {path}")
    if len(left_out) == len(files):
        raise SettingsError(f"{run}: nothing could be drawn; see above.")
