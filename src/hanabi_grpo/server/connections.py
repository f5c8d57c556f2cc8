"""Limits on connections: their number, and the time a client may take to send its request.

uvicorn has no time limit for a client that sends nothing, or only part of a request's head, or does
not read its answer. Its `limit_concurrency` counts such connections like any other, so they could
lock out all other clients. This is its protocol with timeouts, and with a limit at which the
connection that has been idle longest makes room for a new one.
"""

import asyncio
import logging
import math
import os
import resource
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hanabi_grpo.server.door import CROWDED

logger = logging.getLogger(__name__)

HEAD_SECONDS = 20.0
"""Time from the start of a connection, or its last answer, until a request's head is complete."""
READ_SECONDS = 20.0
"""Time in which a slow client must read at least `_READ_BYTES` of its answer."""
_READ_BYTES = 16 << 10
MAX_CONNECTIONS = 1024
_MIN_CONNECTIONS = 16
_LOG_SECONDS = 60.0
"""Minimum time between two log lines of the same kind."""
_OUT_OF_RESOURCES = "socket.accept() out of system resource"
"""Beginning of asyncio's message."""


def connection_limit() -> int:
    """Return the maximum number of connections: at most half of the free file descriptors.

    The rest is for files and for bursts of new connections.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    num_free = soft - len(os.listdir("/dev/fd"))
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, num_free // 2))


class _Seldom:
    """Logs at most one line per minute, and counts the others."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._num_left_out = 0

    def warning(self, text: str) -> None:
        """Log a line, unless one was logged less than a minute ago."""
        now = time.monotonic()
        if now - self._last < _LOG_SECONDS:
            self._num_left_out += 1
            return
        more = f" ({self._num_left_out} more since the last line)" if self._num_left_out else ""
        logger.warning("%s%s", text, more)
        self._last = now
        self._num_left_out = 0


class Server(uvicorn.Server):
    """uvicorn's server, which logs at most once a minute that it cannot accept connections."""

    async def startup(self, sockets: Any = None) -> None:
        """Start serving in the running event loop."""
        seldom = _Seldom()

        def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            # Python 3.11 tries the whole backlog, with a traceback for each connection.
            if not str(context.get("message")).startswith(_OUT_OF_RESOURCES):
                loop.default_exception_handler(context)
                return
            seldom.warning(
                f"new connections must wait: {context.get('exception')}. End clients that are not "
                "needed, or start the server where ulimit -n allows more open files."
            )

        asyncio.get_running_loop().set_exception_handler(report)
        await super().startup(sockets)


def limited_protocol() -> type[H11Protocol]:
    """Return the protocol of one server, limited by the descriptors that this process has now."""
    limit = connection_limit()
    seldom = _Seldom()
    waiting: dict[H11Protocol, None] = {}
    """Connections without a request, longest waiting first."""

    class LimitedProtocol(H11Protocol):
        """uvicorn's protocol with a limit and two timers.

        One runs while there is no request, the other while the client does not read its answer.
        """

        _clock: asyncio.TimerHandle | None = None
        _reading_clock: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limit:
                self._make_room()
            self._start_clock()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            self._stop_reading_clock()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Only a complete head stops the timer, not single bytes.
            if self._has_request():
                self._stop_clock()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._has_request() and not self.transport.is_closing():
                self._start_clock()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._start_reading_clock()

        def resume_writing(self) -> None:
            self._stop_reading_clock()
            super().resume_writing()

        def _has_request(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start_clock(self) -> None:
            self._stop_clock()
            waiting[self] = None
            self._clock = self.loop.call_later(HEAD_SECONDS, self._on_no_head)

        def _on_no_head(self) -> None:
            if self._reading_clock is not None:
                # The client still reads its last answer, which the other timer watches. It stops
                # when little is left: the client had this timer's time to read that.
                self._start_clock()
            else:
                self.transport.abort()

        def _stop_clock(self) -> None:
            waiting.pop(self, None)
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

        def _start_reading_clock(self) -> None:
            unread = self.transport.get_write_buffer_size()

            def check() -> None:
                if unread - self.transport.get_write_buffer_size() < _READ_BYTES:
                    self.transport.abort()
                else:
                    self._start_reading_clock()

            self._stop_reading_clock()
            self._reading_clock = self.loop.call_later(READ_SECONDS, check)

        def _stop_reading_clock(self) -> None:
            if self._reading_clock is not None:
                self._reading_clock.cancel()
                self._reading_clock = None

        def _make_room(self) -> None:
            """Close the connection that has waited longest; if none waits, reject the new one."""
            for oldest in waiting:
                if oldest.transport.get_write_buffer_size():
                    continue
                seldom.warning(
                    f"{limit} connections are open, the maximum: for each new one, the one that "
                    "has been idle longest is closed"
                )
                oldest._stop_clock()  # type: ignore[attr-defined]
                # Removed here, so that it no longer counts before the event loop has closed it.
                self.connections.discard(oldest)
                oldest.transport.abort()
                return
            seldom.warning(f"{limit} connections are open and busy: new ones get status 503")
            # `CrowdCheck` still admits the session's trainer.
            self.app_state = {**self.app_state, CROWDED: limit}

    return LimitedProtocol
