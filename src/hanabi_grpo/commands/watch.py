"""`hanabi-grpo watch`: a run on the terminal while it trains."""

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from hanabi_grpo.commands.console import make_console
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.run_report import levels_of
from hanabi_grpo.report.run_views.run_watch import RunWatch
from hanabi_grpo.report.run_views.screen import RunScreen


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder (OUTPUT_DIR); it may not be there yet.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Watch a run: score, players, phase times, versions, alarms. q leaves, tab brings the next
    panel up.

    Nothing is written, and the run goes on. --once exits with 1 when there is no run yet. Where
    standard output is no terminal, one frame is printed."""
    if run.is_file():
        raise SettingsError(f"{run}: is a file; give the folder of a run (OUTPUT_DIR).")
    console, watched, levels = make_console(), RunWatch(run), levels_of(run)
    if once or not sys.stdout.isatty():
        state = watched.look()
        console.print(RunScreen(state, levels))
        raise typer.Exit(0 if state.is_there else 1)
    # SIGTERM must give the terminal back too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first = 0
    screen = Live(
        RunScreen(watched.look(), levels), console=console, screen=True, auto_refresh=False
    )
    with contextlib.suppress(KeyboardInterrupt), _single_keys(), screen:
        while (key := _typed(every)) != "q":
            first += key == "\t"
            screen.update(RunScreen(watched.look(), levels, first), refresh=True)


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Give keys to the program without Enter and unseen, where standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _typed(seconds: float) -> str:
    """Return the key that is typed within so many seconds; "": none."""
    if sys.stdin.isatty() and select.select([sys.stdin], [], [], seconds)[0]:
        return os.read(sys.stdin.fileno(), 1).decode("ascii", "ignore")
    if not sys.stdin.isatty():
        time.sleep(seconds)
    return ""
