"""One HTTP call to a rollout server: bounded, retried where that helps, its answer as a struct.

httpx limits the time of each read, so a server that sends a byte now and then could keep a call
open forever. httpx gets its sockets from httpcore, whose network backend can be replaced: here the
timeout of each read and write is the remaining time of the whole call.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import httpcore
import httpx

from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.wire import read_struct

logger = logging.getLogger(__name__)
MAX_ANSWER = 16 << 20
"""Maximum bytes of an answer; a request can allow more with its extension "max_bytes"."""
WHO = (
    "Is a rollout server of this version listening there? Check VLLM_SERVER_HOST and "
    "VLLM_SERVER_PORT."
)
"""Next step in an error about an unexpected answer."""
_DECODING = threading.Lock()
"""Held while an answer is decoded.

Decoding games holds the interpreter's lock until it is done. If the threads of many servers decoded
in turn, a thread that is still reading would have to wait for all of them, and its server gives up
on a client that does not read for a while (`server.connections`). So it waits for at most one.
"""
_MAX_CONNECTIONS = 100
_KEEP_IDLE_SECONDS = 5.0
_PAUSE_SECONDS = 0.5
"""Pause before the second try after a lost connection; it grows by this much with each try. Also
the minimum pause before a busy server is asked again."""
_REMINDER_SECONDS = 60.0
"""Minimum time between two log lines about a busy server."""
_LATER_STATUSES = (408, 409, 429, 503)
"""Statuses that mean "later" if the answer has a Retry-After."""
_GONE_STATUSES = (502, 503, 504)
"""Statuses of a server, or of a proxy in front of it, that cannot answer now."""
_MAX_RETRY_AFTER_DIGITS = 5
_MAX_QUOTED = 200
"""Bytes of an answer, and characters of a redirect's target, that an error quotes."""
_MAX_QUOTED_REFUSAL = 500
"""Characters of a refusal that is not plain text, that an error quotes."""
_MAX_DETAIL = 2100
"""Characters of a refusal's message."""
_MAX_QUOTED_ENCODING = 40
_PLAIN_ENCODING = "identity"
_Answer = TypeVar("_Answer")


def call(
    url: str,
    kind: type[_Answer],
    request: Callable[[], httpx.Response],
    what: str,
    *,
    tries: int,
    patience: float,
) -> _Answer:
    """Make a request and return its answer.

    A server that is busy with other clients answers with a Retry-After header. The call is repeated
    after that time, which is harmless because the server has not done anything.

    Args:
        url: Address of the server, for messages.
        kind: Type of the answer: a struct or `dict`.
        request: Function that makes the request.
        what: Description of the call, for messages, e.g. "playing games".
        tries: Number of tries after lost connections; 1 if a repeat would be harmful.
        patience: Total time in seconds for which a busy server is retried.

    Raises:
        ServerGoneError: The server was not reached, did not answer in time or closed the
            connection, or the status is 502, 503 or 504.
        ServerError: The status is not 200, the answer is malformed, or the request cannot be sent.
    """
    start = time.monotonic()
    last_reminder = -math.inf
    num_lost = 0
    while True:
        try:
            response = request()
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServerError(
                f"{url}: {what} cannot be sent: {error}. Check VLLM_SERVER_HOST."
            ) from error
        except httpx.TransportError as error:
            num_lost += 1
            # A timeout is not retried: the next try would take just as long.
            if num_lost >= tries or isinstance(error, httpx.TimeoutException):
                raise ServerGoneError(
                    f"{url}: {what}: no answer after {time.monotonic() - start:.1f} s and "
                    f"{num_lost} attempt(s) ({type(error).__name__}: {error}). Is the rollout "
                    "server running? Look at the other terminal."
                ) from error
            time.sleep(_PAUSE_SECONDS * num_lost)
            continue
        except httpx.RequestError as error:
            raise ServerError(
                f"{url}: {what}: the answer cannot be read: {error}. {WHO}"
            ) from error
        if response.status_code == httpx.codes.OK:
            with _DECODING:
                return read_answer(url, kind, response.content, what)
        num_lost = 0
        refusal = _refusal(url, response, what)
        pause = retry_after(response) if response.status_code in _LATER_STATUSES else None
        if pause is not None:
            # A proxy may send 0, and would be asked again without a pause.
            pause = max(pause, _PAUSE_SECONDS)
        waited = time.monotonic() - start
        if pause is None or waited + pause > patience:
            raise refusal
        if time.monotonic() - last_reminder > _REMINDER_SECONDS:
            last_reminder = time.monotonic()
            logger.warning(
                "%s (retrying every %g s; %.0f of %g s)", refusal, pause, waited, patience
            )
        time.sleep(pause)


def read_answer(url: str, kind: type[_Answer], content: bytes, what: str) -> _Answer:
    """Return the content of an answer.

    Args:
        url: Address of the server, for messages.
        kind: Type of the answer: a struct or `dict`.
        content: JSON.
        what: Description of the call, for messages.

    Raises:
        ServerError: The answer is malformed; the message names the field and quotes the beginning.
    """
    try:
        return read_struct(kind, content)
    except ValueError as error:
        start = content[:_MAX_QUOTED].decode("utf-8", "replace")
        raise ServerError(
            f"{url}: {what}: unexpected response ({error}): {start!r}. {WHO}"
        ) from None


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of a Retry-After header; None without one."""
    seconds = response.headers.get("retry-after", "")
    is_number = seconds.isdecimal() and len(seconds) <= _MAX_RETRY_AFTER_DIGITS
    return float(seconds) if is_number else None


def _refusal(url: str, response: httpx.Response, what: str) -> ServerError:
    status = response.status_code
    if response.is_redirect:
        target = response.headers.get("location", "")[:_MAX_QUOTED]
        return ServerError(
            f"{url}: {what}: the server answered {status} and points to {target!r}; redirects are "
            f"not followed. {WHO}"
        )
    message = f"{url}: {what}: the server answered {status}: {detail_of(response)}"
    if status in _GONE_STATUSES:
        return ServerGoneError(message)
    return ServerError(message)


def detail_of(response: httpx.Response) -> str:
    """Return why a server refused: its "detail", or the beginning of its answer."""
    try:
        detail = read_struct(dict, response.content).get("detail")
    except ValueError:
        detail = None
    if isinstance(detail, list | dict):
        detail = json.dumps(detail)[:_MAX_QUOTED_REFUSAL]
    if not detail:
        detail = response.text[:_MAX_QUOTED_REFUSAL]
    return str(detail)[:_MAX_DETAIL]


def bounded_client(
    *,
    timeout: httpx.Timeout | float,
    headers: Mapping[str, str] | None = None,
    base_url: str = "",
) -> httpx.Client:
    """Return a client with limits on the time of whole calls and on the size of answers.

    Args:
        timeout: Seconds; the read timeout is that of the whole call.
        headers: Headers of every request.
        base_url: URL to which paths are appended.
    """
    return httpx.Client(
        base_url=base_url,
        # Compressed, a small answer may hold gigabytes.
        headers={"accept-encoding": _PLAIN_ENCODING, **(headers or {})},
        timeout=timeout,
        transport=_BoundedTransport(),
        # Proxy variables are meant for the internet, not for machines of the local network.
        trust_env=False,
    )


def refuse_encoding(response: httpx.Response) -> None:
    """Refuse a compressed answer, which may hold gigabytes, by a `DecodingError` of httpx."""
    encoding = response.headers.get("content-encoding", _PLAIN_ENCODING).lower()
    if encoding != _PLAIN_ENCODING:
        raise httpx.DecodingError(
            f"its content-encoding is {encoding[:_MAX_QUOTED_ENCODING]!r}, but none was requested"
        )


_call_of_this_thread = threading.local()
"""Has the `deadline` of the call, on the monotonic clock; a call sends and reads in one thread."""


def _time_left(timeout: float | None) -> float:
    """Return the timeout of the next read or write: at most the remaining time of the call."""
    deadline = getattr(_call_of_this_thread, "deadline", math.inf)
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the call exceeded its time limit")
    return left if timeout is None else min(timeout, left)


class _BoundedStream(httpcore.NetworkStream):
    """A connection whose reads and writes end with the call."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _time_left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # httpcore drops the part that has been sent after every write. Slicing bytes copies the
        # rest of an adapter each time, under the interpreter's lock; slicing a view copies nothing.
        view = memoryview(buffer)
        self._stream.write(view, _time_left(timeout))  # type: ignore[arg-type]

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _BoundedBackend(httpcore.SyncBackend):
    """Connections that are limited by the deadline of the call."""

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> _BoundedStream:
        stream = super().connect_tcp(host, port, _time_left(timeout), *args, **options)
        return _BoundedStream(stream)


class _BoundedTransport(httpx.HTTPTransport):
    """Sends requests whose time and answers are limited as a whole."""

    def __init__(self) -> None:
        super().__init__(trust_env=False)
        # httpx does not pass a network backend to its pool.
        self._pool = httpcore.ConnectionPool(
            max_connections=_MAX_CONNECTIONS,
            keepalive_expiry=_KEEP_IDLE_SECONDS,
            network_backend=_BoundedBackend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        seconds = request.extensions.get("timeout", {}).get("read")
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        _call_of_this_thread.deadline = deadline
        response = super().handle_request(request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        try:
            refuse_encoding(response)
        except httpx.DecodingError:
            response.stream.close()
            raise
        max_bytes = request.extensions.get("max_bytes", MAX_ANSWER)
        response.stream = _LimitedBody(response.stream, max_bytes)
        return response


class _LimitedBody(httpx.SyncByteStream):
    """The body of an answer, with a limit on its bytes."""

    def __init__(self, stream: httpx.SyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._stream:
            size += len(part)
            if size > self._max_bytes:
                raise httpx.DecodingError(f"it has more than {self._max_bytes} bytes")
            yield part

    def close(self) -> None:
        self._stream.close()
