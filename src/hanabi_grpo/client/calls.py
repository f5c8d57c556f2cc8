"""One HTTP call to a rollout server: bounded, repeated where that helps, its answer as a struct or
an error of ours.

httpx limits the time of each read, so a server that sends a byte now and then would be listened to
for ever. Its sockets come from httpcore, whose network backend may be replaced: here each read and
write gets what is left of the whole call."""

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
"""Bytes of an answer; a request allows more by its extension "max_bytes"."""
WHO = (
    "Does a rollout server of this version listen there? Check VLLM_SERVER_HOST and "
    "VLLM_SERVER_PORT."
)
_CONNECTIONS, _IDLE_SECONDS = 100, 5.0
_PAUSE = 0.5
_SAY_SECONDS = 60.0
_LATER = (408, 409, 429, 503)
"""Statuses that mean "later" where the answer has a Retry-After."""
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
    """Make a request and return its answer as `kind`, a struct or `dict`.

    A server that is busy with what others asked for says so, with a Retry-After: the call is made
    again after that time, which does no harm, since a server that says so did nothing. So it goes
    on for `patience` seconds, all together. A connection may be lost `tries` times, 1 where a
    repeat would do harm. Messages name `url` and `what`.

    Raises: ServerGoneError: Not reached, no answer in time, hung up, or 502, 503 and 504.
        ServerError: Any other status than 200, an answer that does not fit, or a request that
        cannot be sent.
    """
    start, said, lost = time.monotonic(), -math.inf, 0
    while True:
        try:
            response = request()
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServerError(
                f"{url}: {what} cannot be sent: {error}. Check VLLM_SERVER_HOST."
            ) from error
        except httpx.TransportError as error:
            lost += 1
            # A server that took all of its time is not given the same time again.
            if lost >= tries or isinstance(error, httpx.TimeoutException):
                raise ServerGoneError(
                    f"{url}: {what}: no answer after {time.monotonic() - start:.1f} s and {lost} "
                    "attempt(s) "
                    f"({type(error).__name__}: {error}). Is the rollout server running? Look at "
                    "the other terminal."
                ) from error
            time.sleep(_PAUSE * lost)
            continue
        except httpx.RequestError as error:
            raise ServerError(
                f"{url}: {what}: the answer cannot be read: {error}. {WHO}"
            ) from error
        if response.status_code == 200:
            return read_answer(url, kind, response.content, what)
        refusal, lost = _refusal(url, response, what), 0
        later = retry_after(response) if response.status_code in _LATER else None
        now = time.monotonic()
        if later is None or now - start + later > patience:
            raise refusal
        if now - said > _SAY_SECONDS:
            said = now
            logger.warning(
                "%s (asked again every %g s, for %.0f of %g s)",
                refusal,
                later,
                now - start,
                patience,
            )
        time.sleep(later)


def read_answer(url: str, kind: type[_Answer], content: bytes, what: str) -> _Answer:
    """Return the content of an answer as `kind`; ServerError: it does not fit, with the field and
    how it begins.
    """
    try:
        return read_struct(kind, content)
    except ValueError as error:
        start = content[:200].decode("utf-8", "replace")
        raise ServerError(
            f"{url}: {what}: the answer does not fit ({error}): {start!r}. {WHO}"
        ) from None


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of a Retry-After; None without one."""
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() and len(seconds) < 6 else None


def _refusal(url: str, response: httpx.Response, what: str) -> ServerError:
    status = response.status_code
    if response.is_redirect:
        return ServerError(
            f"{url}: {what}: the server answered {status} and points to "
            f"{response.headers.get('location', '')[:200]!r}; redirects are not followed. {WHO}"
        )
    message = f"{url}: {what}: the server answered {status}: {detail_of(response)}"
    return ServerGoneError(message) if status in (502, 503, 504) else ServerError(message)


def detail_of(response: httpx.Response) -> str:
    """Return why a server refused: its "detail", else the beginning of its answer."""
    try:
        detail = read_struct(dict, response.content).get("detail")
    except ValueError:
        detail = None
    if isinstance(detail, list | dict):
        detail = json.dumps(detail)[:500]
    return str(detail or response.text[:500])[:2100]


def bounded_client(
    *, timeout: httpx.Timeout | float, headers: Mapping[str, str] | None = None, base_url: str = ""
) -> httpx.Client:
    """Return a client whose limits hold for whole calls: their time in seconds, and the size of
    their answers.
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


_limit = threading.local()
"""Of the call that this thread makes: `until`, on the monotonic clock. A call sends and reads in
one thread.
"""


def _left(timeout: float | None) -> float:
    left = getattr(_limit, "until", math.inf) - time.monotonic()
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


class _Backend(httpcore.SyncBackend):
    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *more: Any, **named: Any
    ) -> _Stream:
        return _Stream(super().connect_tcp(host, port, _left(timeout), *more, **named))


class _BoundedTransport(httpx.HTTPTransport):
    def __init__(self) -> None:
        super().__init__(trust_env=False)
        # httpx hands no network backend on to its pool.
        self._pool = httpcore.ConnectionPool(
            max_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS, network_backend=_Backend()
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        seconds = request.extensions.get("timeout", {}).get("read")
        _limit.until = math.inf if seconds is None else time.monotonic() + seconds
        response = super().handle_request(request)
        encoding = response.headers.get("content-encoding", "identity").lower()
        assert isinstance(response.stream, httpx.SyncByteStream)
        if encoding != "identity":
            response.stream.close()
            raise httpx.DecodingError(
                f"its content-encoding is {encoding[:40]!r}, asked was for none"
            )
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
