"""Serving on the port: first the answer that the server is starting, then the app."""

import asyncio
import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.server.connections import HEAD_SECONDS, Server, limited_protocol

logger = logging.getLogger(__name__)

_UNAVAILABLE = 503
_RETRY_SECONDS = "2"
"""Seconds after which a client asks again whether the server has started."""
_STOP_SECONDS = 5.0
"""Seconds for the thread that answers during the start to end."""
_BACKLOG = 128
"""Connections that may wait in the kernel's queue, and that are accepted at once."""
_MAX_HEAD_BYTES = 64 << 10
"""Maximum size of request line and headers; an upload's PEFT configuration is a header."""

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as `asyncio.run` does, without waiting for name servers at the end.

    A call to a partner or judge first looks up the address of its host. If no name server answers,
    that takes up to a minute, and `asyncio.run` waits for the thread although the call is
    cancelled.
    """
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that looks up addresses in daemon threads, for which nobody has to wait."""

    async def getaddrinfo(self, host: Any, port: Any, **hints: int) -> Any:
        """Return what `socket.getaddrinfo` does, or raise its error."""
        found: asyncio.Future[Any] = self.create_future()

        def tell(addresses: Any, error: Exception | None) -> None:
            if found.done():
                # The call was cancelled.
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        def look_up() -> None:
            addresses = None
            problem = None
            try:
                addresses = socket.getaddrinfo(host, port, **hints)
            except Exception as error:
                problem = error
            # A RuntimeError: the loop was closed meanwhile.
            with contextlib.suppress(RuntimeError):
                self.call_soon_threadsafe(tell, addresses, problem)

        threading.Thread(target=look_up, name="getaddrinfo", daemon=True).start()
        return await found


@contextlib.contextmanager
def starting_server(listener: socket.socket) -> Iterator[None]:
    """Answer every request on a socket with 503 and `{"status": "starting", "seconds": …}`.

    An engine takes minutes to start on the main thread; without an answer, a client cannot tell a
    starting server from one that hangs. This server answers in a thread. Requests after the end of
    the block wait for the next server on the socket.
    """
    began = time.monotonic()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        seconds = round(time.monotonic() - began, 1)
        body = {
            "status": STARTING,
            "seconds": seconds,
            "detail": f"the server is starting, {seconds:.0f} s so far; try again.",
        }
        headers = {"retry-after": _RETRY_SECONDS, "connection": "close"}
        response = JSONResponse(body, status_code=_UNAVAILABLE, headers=headers)
        await response(scope, receive, send)

    server = Server(server_config(answer, graceful_seconds=1))
    thread = threading.Thread(
        target=server.run, args=([listener.dup()],), name="starting", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_STOP_SECONDS)


async def serve_until_dead(
    app: ASGIApp,
    listener: socket.socket,
    is_dead: Callable[[], bool],
    *,
    on_death: Callable[[], object] = lambda: None,
    poll: float = 1.0,
    graceful_seconds: int = 5,
) -> bool:
    """Serve on a listening socket until SIGINT, SIGTERM or the engine's death, and close it.

    Args:
        app: The app to serve.
        listener: The socket.
        is_dead: Tells whether the engine is dead.
        on_death: Called once when the engine is dead, before connections are closed.
        poll: Seconds between two calls of `is_dead`.
        graceful_seconds: Seconds for requests in flight at the end.

    Returns:
        True if the engine died.
    """
    server = Server(server_config(app, graceful_seconds=graceful_seconds))
    engine_died = False

    async def watch() -> None:
        nonlocal engine_died
        while not is_dead():
            await asyncio.sleep(poll)
        engine_died = True
        on_death()
        logger.error("engine dead: requests get status 503 until the server ends")
        server.should_exit = True

    watcher = asyncio.create_task(watch())
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        # Not awaited directly, since its cancellation would look like that of Ctrl-C.
        await asyncio.wait({watcher})
    return engine_died


def server_config(app: ASGIApp, *, graceful_seconds: int) -> uvicorn.Config:
    """Return uvicorn's configuration.

    Args:
        app: The app to serve.
        graceful_seconds: Seconds for requests in flight at the end.
    """
    return uvicorn.Config(
        app,
        http=limited_protocol(),
        # `Server` filters the accept errors of this loop from the log.
        loop="asyncio",
        backlog=_BACKLOG,
        # uvicorn's own logging would first close every handler of the process, including the run's
        # file and absl's stream.
        log_config=None,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(HEAD_SECONDS),
        timeout_graceful_shutdown=graceful_seconds,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
