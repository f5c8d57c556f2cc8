"""What the port answers: that the server is starting, and then the app, until a signal or the
engine's death.
"""

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

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def starting_server(listener: socket.socket) -> Iterator[None]:
    """Answer every request on a listening socket with 503 `{"status": "starting", "seconds": …}`,
    in a thread.

    An engine takes minutes to start, on the main thread; without an answer a client cannot tell a
    server that is starting from one that hangs. Requests after the block's end wait for who serves
    next on the socket."""
    began = time.monotonic()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        seconds = round(time.monotonic() - began, 1)
        detail = f"the server is starting, {seconds:.0f} s so far; ask again."
        body = {"status": STARTING, "seconds": seconds, "detail": detail}
        headers = {"retry-after": "2", "connection": "close"}
        await JSONResponse(body, status_code=503, headers=headers)(scope, receive, send)

    server = uvicorn.Server(server_config(answer, graceful_seconds=1))
    thread = threading.Thread(
        target=server.run, args=([listener.dup()],), name="starting", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(5.0)


async def serve_until_dead(
    app: ASGIApp,
    listener: socket.socket,
    is_dead: Callable[[], bool],
    *,
    on_death: Callable[[], object] = lambda: None,
    poll: float = 1.0,
    graceful_seconds: int = 5,
) -> bool:
    """Serve on a listening socket until SIGINT, SIGTERM or the engine's death, and close it; True:
    the engine died.

    `is_dead` is asked every `poll` seconds, and `on_death` called once when it says so, before
    connections are closed. Requests in flight at the end have `graceful_seconds`."""
    server = uvicorn.Server(server_config(app, graceful_seconds=graceful_seconds))
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


def server_config(app: ASGIApp, *, graceful_seconds: int) -> uvicorn.Config:
    """Return uvicorn's configuration for an app; requests in flight at the end have
    `graceful_seconds`.
    """
    return uvicorn.Config(
        app,
        http="h11",
        # uvicorn's own would close every handler of the process first, the run's file and absl's
        # stream among them.
        log_config=None,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=35,
        timeout_graceful_shutdown=graceful_seconds,
        h11_max_incomplete_event_size=64 << 10,
    )
