"""A rollout server for a single command: a child process on a free port."""

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
from hanabi_grpo.processes import PARENT_VARIABLE
from hanabi_grpo.settings import Settings

_HOST = "127.0.0.1"
_GRACE_SECONDS = 30.0
_POLL_SECONDS = 0.2
_LAST_BREATH_SECONDS = 3.0
"""Longest time between the end of a server's connections and the end of its process."""
_NUM_LOG_LINES = 25
"""Last lines of a dead server's log that an error quotes."""
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
    """Start a rollout server, yield settings with its address once it is healthy, and end it.

    The server resolves its settings itself, from the environment of this process and `environ`.

    Args:
        settings: Settings of this command.
        say: Shows a line to the user.
        environ: Variables of the server that differ from this process.
        command: Command that starts the server; it reads host and port from HANABI_HOST and PORT.
        folder: Folder of the server's log.
        grace: Seconds from SIGTERM to SIGKILL.

    Yields:
        The settings with the address of the server.

    Raises:
        SettingsError: The log cannot be written.
        ServerError: The server died (the message quotes the last lines of its log), or was not
            healthy in time.
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
            f"{folder}: the log of the command's server cannot be written there ({error.strerror})."
        ) from error
    variables = dict(os.environ)
    variables |= environ or {}
    variables |= _server_variables(settings, port)
    with log:
        server = subprocess.Popen(
            list(command),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the command, which then shuts the server down properly.
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
            # Its connections close a moment before the process ends.
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_LAST_BREATH_SECONDS)
                _raise_dead(server, Path(log.name), error)
            raise ServerGoneError(f"{error} The log of its own server: {log.name}") from error
        finally:
            _end(server, grace)


def _server_variables(settings: Settings, port: int) -> dict[str, str]:
    """Return the environment variables that must differ from those of this command."""
    variables = {
        "HANABI_HOST": _HOST,
        "PORT": str(port),
        # A trainer's settings in the environment must not contradict the server's address.
        "VLLM_SERVER_HOST": _HOST,
        "VLLM_SERVER_PORT": str(port),
        "HANABI_DIE_WITH_PARENT": "true",
        PARENT_VARIABLE: str(os.getpid()),
    }
    if settings.preset is None:
        # The preset is set only for this server; MODEL must not be derived from it.
        variables["MODEL"] = settings.model
    if settings.api_key is not None:
        variables["HANABI_API_KEY"] = settings.api_key.get_secret_value()
    return variables


def _raise_dead(
    server: "subprocess.Popen[bytes]", log: Path, cause: BaseException | None
) -> NoReturn:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    message = f"its own server ended with code {server.poll()}; the end of {log}:"
    for line in lines[-_NUM_LOG_LINES:] or ["(empty)"]:
        message += f"\n    {line}"
    raise ServerError(message) from cause


def _end(server: "subprocess.Popen[bytes]", grace: float) -> None:
    """End the server and all processes of its group.

    A second Ctrl-C does not interrupt this.
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
