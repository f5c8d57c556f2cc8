"""What the port answers: that the server is starting, and then the app, until a signal or the engine's death."""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.server.connections import server_config
from hanabi_grpo.server.limits import Limits

logger = logging.getLogger(__name__)

_STOP_SECONDS = 5.0


@contextlib.contextmanager
def starting_server(listener: socket.socket) -> Iterator[Callable[[], None]]:
    """Answer every request on a listening socket with 503 `{"status": "starting", "seconds": …}`.

    An engine takes minutes to start, on the main thread; without an answer a client cannot tell a server that is
    starting from one that hangs. This one works in a thread and says nothing that a key protects.

    Yields:
        What ends it, as the block's end does; requests from then on wait for who serves next on the socket.
    """
    began = time.monotonic()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        seconds = round(time.monotonic() - began, 1)
        detail = f"the server is starting, {seconds:.0f} s so far; ask again."
        body = {"status": STARTING, "seconds": seconds, "detail": detail}
        headers = {"retry-after": "2", "connection": "close"}
        await JSONResponse(body, status_code=503, headers=headers)(scope, receive, send)

    server = uvicorn.Server(server_config(answer, Limits(), graceful_seconds=1))
    thread = threading.Thread(target=server.run, args=([listener.dup()],), name="starting", daemon=True)

    def stop() -> None:
        server.should_exit = True
        thread.join(_STOP_SECONDS)

    thread.start()
    try:
        yield stop
    finally:
        stop()


async def serve_until_dead(
    app: ASGIApp,
    listener: socket.socket,
    is_dead: Callable[[], bool],
    *,
    limits: Limits,
    on_death: Callable[[], object] = lambda: None,
    poll: float = 1.0,
    graceful_seconds: int = 5,
) -> bool:
    """Serve on a listening socket until SIGINT, SIGTERM or the engine's death, and close it.

    Args:
        app: The app.
        listener: The socket.
        is_dead: Whether the engine is dead; looked at every `poll` seconds.
        limits: What a client may use.
        on_death: Called once when the engine's death is seen, before connections are closed.
        poll: See `is_dead`.
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
