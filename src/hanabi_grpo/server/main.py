"""Start the rollout server: port first, then the engine, then the routes; and again when the engine dies."""

import asyncio
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING

from hanabi_grpo.errors import HanabiGrpoError, ServerError
from hanabi_grpo.logs import LineRing, set_up_logging
from hanabi_grpo.processes import die_with_parent
from hanabi_grpo.server.assembly import prepare_environment, rollout_server
from hanabi_grpo.server.restart import Restarts, mark_children, reap_children, restart_at_latest

if TYPE_CHECKING:
    from hanabi_grpo.settings import Settings

logger = logging.getLogger(__name__)


def serve(settings: "Settings", extra_args: list[str]) -> None:
    """Run the server until SIGINT or SIGTERM.

    Args:
        settings: Resolved settings.
        extra_args: Options for vLLM itself, e.g. ["--max-num-batched-tokens", "8192"].

    Raises:
        ServerError: The port is taken.
        SettingsError: MODEL cannot be had.
        SystemExit: A signal, or the engine died too often (`restart.EXIT_CODE`).
    """
    restarts = Restarts(allowed=settings.engine_restarts)
    reap_children()
    mark_children()
    ring = LineRing()
    set_up_logging(ring=ring)
    listener = _listen(settings.host, settings.port)
    if settings.die_with_parent:
        die_with_parent(signal.SIGTERM)
    prepare_environment(settings.device == "cpu")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        died = asyncio.run(_run(settings, extra_args, listener, ring, restarts))
    except HanabiGrpoError:
        raise
    except Exception:
        if restarts.count == 0:
            raise
        # It started before with the same settings: what the dead one held may not be free yet.
        logger.exception("the engine did not start again")
        died = True
    if died:
        restarts.after_engine_death()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle off; without it every small answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


async def _run(
    settings: "Settings", extra_args: list[str], listener: socket.socket, ring: LineRing, restarts: Restarts
) -> bool:
    from hanabi_grpo.server.serving import serve_until_dead
    from hanabi_grpo.server.starting import StartingServer

    with StartingServer(listener) as starting, rollout_server(settings, ring, extra_args) as server:
        starting.stop()
        logger.info("ready on http://%s:%d (instance %s)", settings.host, settings.port, server.identity.instance_id)
        return await serve_until_dead(
            server.app,
            listener,
            lambda: server.engine.is_dead,
            limits=server.limits,
            on_death=lambda: restart_at_latest(restarts),
        )
