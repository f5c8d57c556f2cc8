"""Start the rollout server: port first, then the process that serves, in it the engine, then the routes."""

import asyncio
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING

from hanabi_grpo.errors import ServerError
from hanabi_grpo.logs import LineRing, set_up_logging
from hanabi_grpo.processes import die_with_parent
from hanabi_grpo.server.supervisor import EXIT_CODE, fork_and_supervise

if TYPE_CHECKING:
    from hanabi_grpo.settings import Settings

logger = logging.getLogger(__name__)

_CLEAN_UP_SECONDS = 20
"""From the engine's death to the process's end, at most: a clean-up may hang on what is dead."""


def serve(settings: "Settings", extra_args: list[str]) -> None:
    """Run the server until SIGINT or SIGTERM; `extra_args` are options for vLLM itself.

    Raises:
        ServerError: The port is taken.
        SettingsError: MODEL cannot be had.
        SystemExit: A signal, or the engine died (`supervisor.EXIT_CODE`).
    """
    set_up_logging()
    listener = _listen(settings.host, settings.port)
    if settings.die_with_parent:
        die_with_parent(signal.SIGTERM)
    fork_and_supervise(allowed=settings.engine_restarts)
    signal.signal(signal.SIGTERM, _end)
    if asyncio.run(_run(settings, extra_args, listener)):
        raise SystemExit(EXIT_CODE)


def _end(signum: int, frame: object) -> None:
    # Who ends a whole family of processes sends it twice; the clean-up must not be cut short.
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(128 + signum)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle off; without it every small answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Of every connection: a machine that vanishes says no goodbye, and its games would be played for nobody.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"PORT={port}: cannot listen on {host}:{port} ({error.strerror}). Stop what runs there, or choose another "
            f"port here and the same in the other terminal: PORT={port + 1} and VLLM_SERVER_PORT={port + 1}."
        ) from error
    return listener


async def _run(settings: "Settings", extra_args: list[str], listener: socket.socket) -> bool:
    from hanabi_grpo.server.assembly import prepare_environment, rollout_server
    from hanabi_grpo.server.serving import serve_until_dead, starting_server

    ring = LineRing()
    set_up_logging(ring=ring)
    prepare_environment(settings.device == "cpu")
    with starting_server(listener) as stop, rollout_server(settings, ring, extra_args) as server:
        stop()
        logger.info("ready on http://%s:%d (instance %s)", settings.host, settings.port, server.identity.instance_id)
        return await serve_until_dead(
            server.app,
            listener,
            lambda: server.engine.is_dead,
            limits=server.limits,
            # The kernel ends the process then, and the parent starts the next one.
            on_death=lambda: signal.alarm(_CLEAN_UP_SECONDS),
        )
