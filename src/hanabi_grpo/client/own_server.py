"""A rollout server of this command alone: started as a child on a free port, ended with it on every
way out.
"""

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
_LOOK_SECONDS = 0.2
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
    """Give settings that lead to a server of one's own, healthy from the first line on.

    The server resolves its settings itself, as in this shell but for `environ`; `command` takes
    host and port from HANABI_HOST and PORT. Its log goes to `folder`, and `grace` are the seconds
    from SIGTERM to SIGKILL.

    Raises:
        ServerError: It died, with the last lines of its log, or was not healthy in time.
    """
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port = int(probe.getsockname()[1])
    here = settings.model_copy(update={"vllm_server_host": _HOST, "vllm_server_port": port})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / f"own-server-{datetime.now():%Y%m%d-%H%M%S}-{port}.log").open("xb")
    except OSError as error:
        raise SettingsError(
            f"{folder}: no log of its own server can be written there ({error.strerror})."
        ) from error
    with log:
        # What is a trainer's is not the server's: its addresses must not contradict each other.
        own = {
            "HANABI_HOST": _HOST,
            "PORT": str(port),
            "VLLM_SERVER_HOST": _HOST,
            "VLLM_SERVER_PORT": str(port),
        }
        if settings.preset is None:
            # The board is named for this server alone; MODEL must not follow it.
            own["MODEL"] = settings.model
        if settings.api_key is not None:
            own["HANABI_API_KEY"] = settings.api_key.get_secret_value()
        server = subprocess.Popen(
            list(command),
            env={**os.environ, **(environ or {}), **own, "HANABI_DIE_WITH_PARENT": "true"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the command, which then ends the server in order.
            start_new_session=True,
        )

        def look() -> None:
            if server.poll() is not None:
                _raise_dead(server, Path(log.name), None)

        try:
            say(f"own server: starting on port {port}, log {log.name}")
            wait_for_server(here, say, server_command=None, poll=_LOOK_SECONDS, look=look)
            yield here
        except ServerGoneError as error:
            # Its connections close a moment before it has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(3.0)
                _raise_dead(server, Path(log.name), error)
            raise ServerGoneError(f"{error} The log of its own server: {log.name}") from error
        finally:
            _end(server, grace)


def _raise_dead(
    server: "subprocess.Popen[bytes]", log: Path, cause: BaseException | None
) -> NoReturn:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
    shown = "\n".join(f"    {line}" for line in lines) or "    (empty)"
    raise ServerError(
        f"its own server ended with code {server.poll()}; the end of {log}:\n{shown}"
    ) from cause


def _end(server: "subprocess.Popen[bytes]", grace: float) -> None:
    """End the server and whatever it left in its process group; a second Ctrl-C does not cut this
    short.
    """
    held = (
        (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        else ()
    )
    before = {number: signal.signal(number, signal.SIG_IGN) for number in held}
    try:
        if server.poll() is None:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
