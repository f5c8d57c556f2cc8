"""What the port answers: that the server is starting, and then the app, until a signal or the engine's death.

uvicorn has no time limit for a client that says nothing, or half of a request head, or does not read its answer, and
only its h11 protocol bounds the size of a head. `GuardedProtocol` is that one with a clock and a cap.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.server.door import Limits, problem

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def starting_server(listener: socket.socket) -> Iterator[Callable[[], None]]:
    """Answer every request on a listening socket with 503 `{"status": "starting", "seconds": …}`, in a thread.

    An engine takes minutes to start, on the main thread; without an answer a client cannot tell a server that is
    starting from one that hangs. What is yielded ends it, as the block's end does; requests from then on wait for who
    serves next on the socket.
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
        thread.join(5.0)

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
    """Serve on a listening socket until SIGINT, SIGTERM or the engine's death, and close it; True: the engine died.

    `is_dead` is asked every `poll` seconds, and `on_death` called once when it says so, before connections are closed.
    Requests in flight at the end have `graceful_seconds`.
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


def server_config(app: ASGIApp, limits: Limits, *, graceful_seconds: int = 5) -> uvicorn.Config:
    """Return uvicorn's configuration for an app behind these limits; requests in flight have `graceful_seconds`."""
    return uvicorn.Config(
        app,
        # uvicorn makes one instance a connection and hands over nothing of ours.
        http=type("Limited", (GuardedProtocol,), {"limits": limits}),
        # uvicorn's own would close every handler of the process first, the run's file and absl's stream among them.
        log_config=None,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        # The clock below covers idle connections too, and bytes do not stop it.
        timeout_keep_alive=max(1, round(limits.head_seconds) + 5),
        timeout_graceful_shutdown=graceful_seconds,
        h11_max_incomplete_event_size=limits.header_bytes,
    )


class GuardedProtocol(H11Protocol):
    """uvicorn's h11 protocol that closes what is not inside a request and has sent no request head in time."""

    limits = Limits()
    _clock: asyncio.TimerHandle | None = None
    _unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock; a client over the cap is told so."""
        super().connection_made(transport)
        open_now = len(self.connections)
        if open_now > 2 * self.limits.connections:
            transport.abort()
            return
        if open_now > self.limits.connections:
            self.app = cast(Any, _full(open_now - 1, self.limits.connections))
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; a complete request head stops the clock, single bytes do not."""
        super().data_received(data)
        if self._in_request() and not self.flow.write_paused:
            self._stop_clock()

    def pause_writing(self) -> None:
        """Start the clock: the client reads its answer more slowly than it is written, or not at all."""
        super().pause_writing()
        self._unsent = 0
        self._start_clock()

    def resume_writing(self) -> None:
        """Stop the clock in the middle of an answer; after it, the clock waits for the next request."""
        super().resume_writing()
        if self._in_request():
            self._stop_clock()

    def on_response_complete(self) -> None:
        """Start the clock anew, unless the next request is here already."""
        super().on_response_complete()
        if not self._in_request() and not self.transport.is_closing():
            self._start_clock()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, and close; in the middle of an answer uvicorn's own would raise."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_clock(self) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(self.limits.head_seconds, self._on_time_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _on_time_up(self) -> None:
        self._clock = None
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent and not (before and unsent >= before):
            self._start_clock()  # It reads, slowly.
        elif unsent or self.transport.is_closing():
            self.transport.abort()  # It does not read its answer; a close would wait for it.
        else:
            self.transport.close()


def _full(open_now: int, allowed: int) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        logger.warning("refused a connection: %d are open, allowed are %d", open_now, allowed)
        message = f"{open_now} connections are open, allowed are {allowed}. Close some, or try again later."
        await problem(503, message, close=True, again=True)(scope, receive, send)

    return answer
