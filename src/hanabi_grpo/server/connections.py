"""Connections that strangers open: bounded in number, and in the time that they may take to say what they want.

uvicorn has no time limit for a client that connects and says nothing, or half of a request head, and only its h11
protocol bounds the size of a head. This is that protocol with a clock, a cap and the right status for a bad head.
"""

import asyncio
import contextlib
import logging
import socket
import sys
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hanabi_grpo.server.answers import problem
from hanabi_grpo.server.limits import Limits

logger = logging.getLogger(__name__)

_OVER_CAP_SECONDS = 2.0
"""For a client over the cap to send its request head, so that it can be answered."""


def server_config(app: ASGIApp, limits: Limits, *, graceful_seconds: int = 5) -> uvicorn.Config:
    """Return uvicorn's configuration for an app behind these limits.

    Args:
        app: The app.
        limits: What a client may use.
        graceful_seconds: For requests in flight when the server stops.
    """

    class Limited(GuardedProtocol):
        """The protocol with these limits; uvicorn makes one instance a connection and hands over none of ours."""

    Limited.limits = limits
    return uvicorn.Config(
        app,
        http=Limited,
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
    _seconds = 0.0
    _unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock; a client over the cap is told so."""
        super().connection_made(transport)
        _probe_dead_peers(transport)
        self._seconds = self.limits.head_seconds
        open_now = len(self.connections)
        if open_now > 2 * self.limits.connections:
            transport.abort()
            return
        if open_now > self.limits.connections:
            self._seconds = min(self._seconds, _OVER_CAP_SECONDS)
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
        """Answer what is not HTTP with the status that h11 gives it (431 for a head that is too large), and close."""
        # uvicorn calls this where it handles h11's error, and does not hand it over.
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        limit = f"; allowed are {self.limits.header_bytes} bytes of headers" if status == 431 else ""
        self._refuse(status, f"not a valid HTTP request: {error or msg}{limit}.")

    def _unsupported_upgrade_warning(self) -> None:
        # Anybody may ask for a websocket, before the key is looked at: it is answered as any request, without a line.
        pass

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_clock(self) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(self._seconds, self._on_time_up)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _on_time_up(self) -> None:
        self._clock = None
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent:
            if before and unsent >= before:
                # The client does not read its answer; a close would wait for it.
                self.transport.abort()
            else:
                self._start_clock()
        elif self.transport.is_closing():
            self.transport.abort()
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, f"the request's head was not complete after {self._seconds:g} s.")
        else:
            self.transport.close()

    def _refuse(self, status: int, reason: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # The app is reading this request's body: to it, the client has hung up.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            answer = problem(status, reason, close=True)
            with contextlib.suppress(h11.LocalProtocolError):
                head = h11.Response(status_code=status, headers=answer.raw_headers, reason=b"")
                for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _full(open_now: int, allowed: int) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        logger.warning("refused a connection: %d are open, allowed are %d", open_now, allowed)
        message = f"{open_now} connections are open, allowed are {allowed}. Close some, or try again later."
        await problem(503, message, close=True, again=True)(scope, receive, send)

    return answer


def _probe_dead_peers(transport: asyncio.Transport) -> None:
    # A machine that vanishes in the middle of a rollout sends no goodbye; its games would be played for nobody.
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
