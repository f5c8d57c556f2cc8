"""Connections: how many there may be, and how long one may take to say what it wants.

uvicorn has no time limit for a client that says nothing, or half of a request's head, or does not
read its answer; and its `limit_concurrency` counts such connections like any other, so that they
would keep all others out. This is its protocol with clocks, and with a limit that the longest
waiting connection makes room for.
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
"""From a connection's beginning, or its last answer, until the head of a request is complete."""
READ_SECONDS = 20.0
"""In which a client that keeps the server waiting reads at least `_READ_BYTES` of its answer."""
_READ_BYTES = 16 << 10
MAX_CONNECTIONS = 1024
_MIN_CONNECTIONS = 16
_LOG_SECONDS = 60.0
"""Least time between two log lines of the same kind."""
_OUT_OF_RESOURCES = "socket.accept() out of system resource"
"""How asyncio begins its message."""


def connection_limit() -> int:
    """Return how many connections there may be: at most half of the descriptors that are free.

    The rest is for files, and for connections that come in one burst.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    num_free = soft - len(os.listdir("/dev/fd"))
    return max(_MIN_CONNECTIONS, min(MAX_CONNECTIONS, num_free // 2))


class _Seldom:
    """Lets through one line a minute, and counts the others."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._num_left_out = 0

    def warning(self, text: str) -> None:
        """Log a line, unless one was logged less than a minute ago."""
        now = time.monotonic()
        if now - self._last < _LOG_SECONDS:
            self._num_left_out += 1
            return
        more = f" ({self._num_left_out} more times since then)" if self._num_left_out else ""
        logger.warning("%s%s", text, more)
        self._last = now
        self._num_left_out = 0


class Server(uvicorn.Server):
    """uvicorn's server, which says once a minute at most that it cannot accept connections."""

    async def startup(self, sockets: Any = None) -> None:
        """Begin to serve in the running event loop."""
        seldom = _Seldom()

        def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            # Python 3.11 goes on through the whole backlog, with a traceback each.
            if not str(context.get("message")).startswith(_OUT_OF_RESOURCES):
                loop.default_exception_handler(context)
                return
            seldom.warning(
                f"new connections have to wait: {context.get('exception')}. End clients that are "
                "not needed, or start the server where ulimit -n allows more open files."
            )

        asyncio.get_running_loop().set_exception_handler(report)
        await super().startup(sockets)


def limited_protocol() -> type[H11Protocol]:
    """Return the protocol of one server, with the limit of what this process may open now."""
    limit = connection_limit()
    seldom = _Seldom()
    waiting: dict[H11Protocol, None] = {}
    """Connections without a request, the longest waiting first."""

    class LimitedProtocol(H11Protocol):
        """uvicorn's protocol with a limit, and with clocks.

        One runs while there is no request, one while the client does not read its answer.
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
            # A complete head stops the clock, single bytes do not.
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
            if self.transport.get_write_buffer_size():
                # The client still reads its last answer, which the other clock watches.
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
            """Close the connection that waits for longest; where none does, refuse the new one."""
            for oldest in waiting:
                if oldest.transport.get_write_buffer_size():
                    continue
                seldom.warning(
                    f"{limit} connections are open, the maximum: for each new one, the one that "
                    "has been idle longest is closed"
                )
                oldest._stop_clock()  # type: ignore[attr-defined]
                # Not counted until the event loop has closed it.
                self.connections.discard(oldest)
                oldest.transport.abort()
                return
            seldom.warning(f"{limit} connections are open and busy: new ones get status 503")
            # The door lets in the session's trainer all the same.
            self.app_state = {**self.app_state, CROWDED: limit}

    return LimitedProtocol
