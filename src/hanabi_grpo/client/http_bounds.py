"""An HTTP client whose limits hold for whole calls: their time, and the size of their answers.

httpx limits the time of each read, so a server that sends a byte now and then would be listened to for ever. Its
sockets come from httpcore, whose network backend may be replaced: here each read and write gets what is left of it.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpcore
import httpx

MAX_ANSWER = 16 << 20
"""Bytes of an answer; a request allows more by its extension "max_bytes"."""
_CONNECTIONS, _IDLE_SECONDS = 100, 5.0


def bounded_client(
    *, timeout: httpx.Timeout | float, headers: Mapping[str, str] | None = None, base_url: str = ""
) -> httpx.Client:
    """Return a client for a server of ours.

    Args:
        timeout: Seconds; what httpx takes as the limit of a read is here that of the whole call.
        headers: Of every request.
        base_url: Of every request.
    """
    return httpx.Client(
        base_url=base_url,
        # Compressed, a small answer may hold gigabytes.
        headers={"accept-encoding": "identity", **(headers or {})},
        timeout=timeout,
        transport=_BoundedTransport(),
        # A proxy variable is meant for the internet, not for the machine next door.
        trust_env=False,
    )


_call = threading.local()
"""Of the call that this thread makes: `until`, on the monotonic clock. A call sends and reads in one thread."""


def _left(timeout: float | None) -> float:
    left = getattr(_call, "until", math.inf) - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the time of the whole call is up")
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    """A connection whose reads and writes end with the call."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any, **named: Any) -> _Stream:
        return _Stream(self._backend.connect_tcp(host, port, _left(timeout), *more, **named))


class _BoundedTransport(httpx.HTTPTransport):
    def __init__(self) -> None:
        super().__init__(trust_env=False)
        # httpx hands no network backend on to its pool.
        self._pool = httpcore.ConnectionPool(
            max_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS, network_backend=_Backend()
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        seconds = request.extensions.get("timeout", {}).get("read")
        _call.until = math.inf if seconds is None else time.monotonic() + seconds
        response = super().handle_request(request)
        encoding = response.headers.get("content-encoding", "identity").lower()
        assert isinstance(response.stream, httpx.SyncByteStream)
        if encoding != "identity":
            response.stream.close()
            raise httpx.DecodingError(f"its content-encoding is {encoding[:40]!r}, asked was for none")
        response.stream = _Bounded(response.stream, request.extensions.get("max_bytes", MAX_ANSWER))
        return response


class _Bounded(httpx.SyncByteStream):
    """An answer's body, as far as it may go."""

    def __init__(self, stream: httpx.SyncByteStream, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._stream:
            size += len(part)
            if size > self._max_bytes:
                raise httpx.DecodingError(f"it has more than {self._max_bytes} bytes")
            yield part

    def close(self) -> None:
        self._stream.close()
