"""`hanabi-grpo watch`: a run on the terminal while it trains."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hanabi_grpo.report.run_views.run_watch import RunWatch
    from hanabi_grpo.report.run_views.server_watch import ServerWatch


def watch(
    run: Annotated[Path | None, typer.Argument(help="Run folder (OUTPUT_DIR); it may not be there yet.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Watch a rollout server instead, e.g. http://127.0.0.1:8000.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch a run: score, players, phase times, versions, alarms, the last game. Ctrl-C ends the watching only.

    Nothing is written. With --server, what a rollout server says of itself and of its games; HANABI_API_KEY is its key.

    --once and --json exit with 1 when there is no run, or no server, yet. Where standard output is no terminal, one
    frame is printed.
    """
    from rich.live import Live

    from hanabi_grpo.commands.console import make_console
    from hanabi_grpo.errors import SettingsError
    from hanabi_grpo.report.run_views.screen import RunScreen
    from hanabi_grpo.report.run_views.server_screen import ServerScreen

    if (run is None) == (server is None):
        raise SettingsError("watch: give either a run folder or --server URL.")
    if not 0.1 <= every <= 3600:
        raise SettingsError(f"--every {every}: must be 0.1 to 3600 seconds.")
    console = make_console()
    look: Callable[[], tuple[RunScreen | ServerScreen, bool]]
    if run is not None:
        if run.is_file():
            raise SettingsError(f"{run}: is a file; give the folder of a run (OUTPUT_DIR).")
        run_watch = _run_watch(run)

        def look() -> tuple[RunScreen | ServerScreen, bool]:
            state = run_watch.look()
            return RunScreen(state), state.is_there
    else:
        server_watch = _server_watch(server or "")

        def look() -> tuple[RunScreen | ServerScreen, bool]:
            state = server_watch.look()
            return ServerScreen(state), not state.problem

    if as_json or once or not sys.stdout.isatty():
        frame, is_there = look()
        if as_json:
            sys.stdout.write(json.dumps(frame.state.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        else:
            console.print(frame)
        raise typer.Exit(0 if is_there else 1)
    # SIGTERM must give the terminal back too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(look()[0], console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(look()[0], refresh=True)
    except KeyboardInterrupt:
        return


def _run_watch(run: Path) -> "RunWatch":
    from hanabi_grpo.report.run_views.run_watch import RunWatch

    return RunWatch(run)


def _server_watch(url: str) -> "ServerWatch":
    import httpx

    from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
    from hanabi_grpo.errors import SettingsError
    from hanabi_grpo.report.run_views.server_watch import ServerWatch
    from hanabi_grpo.settings import load_settings

    try:
        parsed = httpx.URL(url)
        is_usable = parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.userinfo
    except httpx.InvalidURL:
        is_usable = False
    if not is_usable:
        raise SettingsError(f"--server {url!r}: must be an address such as http://127.0.0.1:8000.")
    key = load_settings().settings.api_key
    secret = key.get_secret_value() if key else None
    return ServerWatch(RolloutClient(url.rstrip("/"), api_key=secret, timeouts=ClientTimeouts(answer=10.0, busy=0.0)))
