"""`hanabi-grpo watch`: a run on the terminal while it trains."""

import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from hanabi_grpo.commands.console import make_console
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.run_views.run_watch import RunWatch
from hanabi_grpo.report.run_views.screen import RunScreen


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder (OUTPUT_DIR); it may not be there yet.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch a run: score, players, phase times, versions, alarms. Ctrl-C ends the watching only.

    Nothing is written. --once exits with 1 when there is no run yet. Where standard output is no terminal, one frame is
    printed.
    """
    if run.is_file():
        raise SettingsError(f"{run}: is a file; give the folder of a run (OUTPUT_DIR).")
    console, watched = make_console(), RunWatch(run)
    if once or not sys.stdout.isatty():
        state = watched.look()
        console.print(RunScreen(state))
        raise typer.Exit(0 if state.is_there else 1)
    # SIGTERM must give the terminal back too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Live(RunScreen(watched.look()), console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), screen:
        while True:
            time.sleep(every)
            screen.update(RunScreen(watched.look()), refresh=True)
