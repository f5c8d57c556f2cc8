"""Serve an app until a signal says stop, or until its engine is dead."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from hanabi_grpo.server.connections import server_config
from hanabi_grpo.server.limits import Limits

logger = logging.getLogger(__name__)


async def serve_until_dead(
    app: ASGIApp,
    listener: socket.socket,
    is_dead: Callable[[], bool],
    *,
    limits: Limits,
    on_death: Callable[[], None] = lambda: None,
    poll: float = 1.0,
    graceful_seconds: int = 5,
) -> bool:
    """Serve until SIGINT, SIGTERM or the engine's death.

    Args:
        app: The app.
        listener: A socket that listens; closed at the end.
        is_dead: Whether the engine is dead.
        limits: What a client may use.
        on_death: Called once when the engine's death is seen, before connections are closed.
        poll: Seconds between two looks at the engine.
        graceful_seconds: For requests in flight at the end.

    Returns:
        True when the engine died.
    """
    server = uvicorn.Server(server_config(app, limits, graceful_seconds=graceful_seconds))
    dead = False

    async def watch() -> None:
        nonlocal dead
        while not is_dead():
            await asyncio.sleep(poll)
        dead = True
        on_death()
        logger.error("engine dead: requests are answered 503 until the server ends")
        server.should_exit = True

    watcher = asyncio.create_task(watch())
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    return dead
