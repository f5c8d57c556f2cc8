"""`hanabi-grpo chart`: the pictures of a run as PNG and SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def chart(
    run: Annotated[Path, typer.Argument(help="Run folder; of a run that is going on too.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; RUN/charts when left out.")] = None,
) -> None:
    """Draw a run: score, players and phase times as PNG and SVG, and what the alarms watch as PNG.

    A picture that the run has no figures for is left out, and said.
    """
    from hanabi_grpo.charts.dynamics import draw_dynamics
    from hanabi_grpo.charts.run_curves import draw_phases, draw_players, draw_score
    from hanabi_grpo.commands.console import make_console
    from hanabi_grpo.errors import SettingsError
    from hanabi_grpo.games import make_spec
    from hanabi_grpo.run_views.run_watch import read_run

    state = read_run(run)
    folder = out or run / "charts"
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"--out {folder}: is a file; give a folder.")
    title = f"{state.name}: {len(state.rows)} steps"
    preset, num_players = state.settings.get("HANABI_PRESET"), state.settings.get("HANABI_PLAYERS")
    try:
        most = make_spec(preset, num_players).reachable_max if preset and num_players else None
    except (SettingsError, ValueError, TypeError):
        # A board of another version; only a label needs it.
        most = None
    console = make_console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    rows = state.rows
    draw: dict[str, Callable[[list[Path]], None]] = {
        "score": lambda files: draw_score(files, rows, title=title, most_points=most),
        "players": lambda files: draw_players(files, rows, title=title),
        "phases": lambda files: draw_phases(files, rows, title=title),
        "dynamics": lambda files: draw_dynamics(files[0], rows, title=title),
    }
    drawn = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out {folder}: cannot be made ({error.strerror}); choose another.") from error
    for name, draw_it in draw.items():
        kinds = ("png",) if name == "dynamics" else ("png", "svg")
        files = [folder / f"{name}.{kind}" for kind in kinds]
        try:
            draw_it(files)
        except SettingsError as error:
            say(f"no picture {name}: {error}")
            continue
        drawn += 1
        for path in files:
            say(f"picture: {path}")
    if not drawn:
        raise SettingsError(f"{run}: nothing could be drawn; see above.")
