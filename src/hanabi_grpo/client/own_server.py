"""A rollout server for this command alone: a child on a free port that ends with the command."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.settings import Settings

_HOST = "127.0.0.1"
_GRACE_SECONDS = 30.0
_POLL_SECONDS = 0.2
_LAST_BREATH_SECONDS = 3.0
"""Between the end of a server's connections and its own."""
_NUM_LOG_LINES = 25
"""Last lines of a dead server's log in the error."""
_SERVE = (sys.executable, "-m", "hanabi_grpo.cli", "serve")


@contextlib.contextmanager
def own_server(
    settings: Settings,
    say: Callable[[str], None],
    *,
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = _SERVE,
    folder: Path = Path("outputs"),
    grace: float = _GRACE_SECONDS,
) -> Iterator[Settings]:
    """Start a rollout server, yield settings that lead to it once it is healthy, and end it.

    The server resolves its settings itself, as in this shell but for `environ`.

    Args:
        settings: Of this command.
        say: Shows a line to the user.
        environ: Variables of the server that differ from this shell's.
        command: Starts the server; it takes host and port from HANABI_HOST and PORT.
        folder: Where its log goes.
        grace: Seconds from SIGTERM to SIGKILL.

    Raises:
        SettingsError: No log can be written.
        ServerError: It died, with the last lines of its log, or was not healthy in time.
    """
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port = int(probe.getsockname()[1])
    update = {"vllm_server_host": _HOST, "vllm_server_port": port}
    own_settings = settings.model_copy(update=update)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / f"own-server-{datetime.now():%Y%m%d-%H%M%S}-{port}.log").open("xb")
    except OSError as error:
        raise SettingsError(
            f"{folder}: no log of its own server can be written there ({error.strerror})."
        ) from error
    with log:
        server = subprocess.Popen(
            list(command),
            env={**os.environ, **(environ or {}), **_server_variables(settings, port)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the command, which then ends the server in order.
            start_new_session=True,
        )

        def raise_if_dead() -> None:
            if server.poll() is not None:
                _raise_dead(server, Path(log.name), None)

        try:
            say(f"own server: starting on port {port}, log {log.name}")
            wait_for_server(
                own_settings, say, server_command=None, poll=_POLL_SECONDS, look=raise_if_dead
            )
            yield own_settings
        except ServerGoneError as error:
            # Its connections close a moment before it has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_LAST_BREATH_SECONDS)
                _raise_dead(server, Path(log.name), error)
            raise ServerGoneError(f"{error} The log of its own server: {log.name}") from error
        finally:
            _end(server, grace)


def _server_variables(settings: Settings, port: int) -> dict[str, str]:
    """Return what the server must read otherwise than this command."""
    variables = {
        "HANABI_HOST": _HOST,
        "PORT": str(port),
        # A trainer's settings of this shell must not contradict the server's own address.
        "VLLM_SERVER_HOST": _HOST,
        "VLLM_SERVER_PORT": str(port),
        "HANABI_DIE_WITH_PARENT": "true",
    }
    if settings.preset is None:
        # The board is named for this server alone; MODEL must not follow it.
        variables["MODEL"] = settings.model
    if settings.api_key is not None:
        variables["HANABI_API_KEY"] = settings.api_key.get_secret_value()
    return variables


def _raise_dead(
    server: "subprocess.Popen[bytes]", log: Path, cause: BaseException | None
) -> NoReturn:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_NUM_LOG_LINES:]
    indented = [f"    {line}" for line in lines] or ["    (empty)"]
    end = "\n".join(indented)
    raise ServerError(
        f"its own server ended with code {server.poll()}; the end of {log}:\n{end}"
    ) from cause


def _end(server: "subprocess.Popen[bytes]", grace: float) -> None:
    """End the server and whatever it left in its process group.

    A second Ctrl-C does not cut this short.
    """
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        # Only the main thread may set handlers.
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, signal.SIG_IGN)
    try:
        if server.poll() is None:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
