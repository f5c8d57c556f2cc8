"""What the port answers: that the server is starting, and then the app, until a signal or the engine's death."""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.server.connections import server_config
from hanabi_grpo.server.limits import Limits

logger = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
CLEAN_UP_SECONDS = 20.0
"""From the engine's death to the process's end, at most."""


class StartingServer:
    """Answers every request on a listening socket with 503 `{"status": "starting", "seconds": …}`.

    An engine takes minutes to start, on the main thread; without an answer a client cannot tell a server that is
    starting from one that hangs. This one works in a thread and says nothing that a key protects.

    Example:
        with StartingServer(listener) as starting, rollout_server(…) as server:
            starting.stop()
    """

    def __init__(self, listener: socket.socket) -> None:
        """Prepare; the socket stays open for who serves next."""
        began = time.monotonic()

        # No method: uvicorn takes a bound one for an application of ASGI 2.
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            seconds = round(time.monotonic() - began, 1)
            detail = f"the server is starting, {seconds:.0f} s so far; ask again."
            body = {"status": STARTING, "seconds": seconds, "detail": detail}
            headers = {"retry-after": "2", "connection": "close"}
            await JSONResponse(body, status_code=503, headers=headers)(scope, receive, send)

        self._server = uvicorn.Server(server_config(answer, Limits(), graceful_seconds=1))
        self._thread = threading.Thread(target=self._server.run, args=([listener.dup()],), name="starting", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self.stop()

    def stop(self) -> None:
        """End; requests from now on wait for who serves next."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)


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
        # Not awaited itself: its cancellation would look like that of Ctrl-C.
        await asyncio.wait({watcher})
    return dead


def exit_at_latest(code: int, seconds: float = CLEAN_UP_SECONDS) -> None:
    """End this process after `seconds` whatever its main thread waits for: a clean-up may hang on what is dead."""

    def end() -> None:
        logger.error("the clean-up takes more than %g s; the server does not wait for it", seconds)
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
