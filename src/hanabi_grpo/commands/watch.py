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

_QUIT = "q"
_NEXT_PANEL = "\t"


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder (OUTPUT_DIR); it need not exist yet.")],
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between frames.")] = 1.0,
) -> None:
    """Watch a run: score, players, phase times, versions, alarms.

    q quits, tab shows the next panel first. Nothing is written, and the run is not affected. --once
    exits with 1 if there is no run yet. If standard output is not a terminal, one frame is printed.
    """
    if run.is_file():
        raise SettingsError(f"{run}: is a file; give the folder of a run (OUTPUT_DIR).")
    console = make_console()
    run_watch = RunWatch(run)
    levels = levels_of(run)
    if once or not sys.stdout.isatty():
        state = run_watch.look()
        console.print(RunScreen(state, levels))
        raise typer.Exit(0 if state.is_there else 1)
    # SIGTERM must restore the terminal too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first_panel = 0
    frame = RunScreen(run_watch.look(), levels)
    live = Live(frame, console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _single_keys(), live:
        while True:
            key = _read_key(every)
            if key == _QUIT:
                break
            if key == _NEXT_PANEL:
                first_panel += 1
            live.update(RunScreen(run_watch.look(), levels, first_panel), refresh=True)


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Deliver each key at once and without echo, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    previous = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, previous)


def _read_key(seconds: float) -> str:
    """Wait up to `seconds` for a key; return "" if none was pressed."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    is_pressed, _, _ = select.select([sys.stdin], [], [], seconds)
    if not is_pressed:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "ignore")
