"""One HTTP call to the rollout server: its answer as a struct, or an error that says whom to ask and what to do."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.runs.wire import read_struct

logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
WHO = "Does a rollout server of this version listen there? Check VLLM_SERVER_HOST and VLLM_SERVER_PORT."
_PAUSE = 0.5
_SAY_SECONDS = 60.0
_LATER = (408, 409, 429, 503)
"""Statuses that mean "later" where the answer has a Retry-After."""


def read_answer(url: str, kind: type[_Answer], content: bytes, what: str) -> _Answer:
    """Return the content of an answer as `kind`, a struct or `dict`.

    Raises:
        ServerError: It is not JSON, or does not fit; with the field and the first characters.
    """
    try:
        return read_struct(kind, content)
    except ValueError as error:
        problem = f"does not fit ({error})" if _parsed(content) is not None else "is not JSON, or only a part of it"
        start = content[:200].decode("utf-8", "replace")
        raise ServerError(f"{url}: {what}: the answer {problem}: {start!r}. {WHO}") from None


def call_bytes(url: str, request: Callable[[], httpx.Response], what: str, *, tries: int, patience: float) -> bytes:
    """Make a request and return the content of its answer.

    A server that is busy with what others asked for says so, with a Retry-After: the call is made again after that
    time, which does no harm, since a server that says so did nothing.

    Args:
        url: Of the server, for messages.
        request: Makes it; called again after a lost connection.
        what: Its name, for messages.
        tries: How often a connection may be lost; 1 where a repeat would do harm.
        patience: Seconds to go on asking a busy server, all together.

    Raises:
        ServerGoneError: Not reached, no answer in time, hung up, or 502, 503 and 504.
        ServerError: Any other answer than 200, or a request that cannot be sent.
    """
    start, said = time.monotonic(), float("-inf")
    while True:
        response = _response(url, request, what, tries)
        if response.status_code == 200:
            return response.content
        error, later = _refusal(url, response, _parsed(response.content), what), _retry_after(response)
        now = time.monotonic()
        if later is None or now - start + later > patience:
            raise error
        if now - said > _SAY_SECONDS:
            said = now
            logger.warning("%s (asked again every %g s, for %.0f of %g s)", error, later, now - start, patience)
        time.sleep(later)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _response(url: str, request: Callable[[], httpx.Response], what: str, tries: int) -> httpx.Response:
    start, attempt = time.monotonic(), 1
    while True:
        try:
            return request()
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServerError(f"{url}: {what} cannot be sent: {error}. Check VLLM_SERVER_HOST.") from error
        except httpx.TransportError as error:
            # A server that took all of its time is not given the same time again.
            if attempt >= tries or isinstance(error, httpx.TimeoutException):
                raise ServerGoneError(
                    f"{url}: {what}: no answer after {time.monotonic() - start:.1f} s and {attempt} attempt(s) "
                    f"({type(error).__name__}: {error}). Is the rollout server running? Look at the other terminal."
                ) from error
            time.sleep(_PAUSE * attempt)
            attempt += 1
        except httpx.RequestError as error:
            raise ServerError(f"{url}: {what}: the answer cannot be read: {error}. {WHO}") from error


def _retry_after(response: httpx.Response) -> float | None:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if response.status_code in _LATER and seconds.isdecimal() and len(seconds) < 6 else None


def _refusal(url: str, response: httpx.Response, data: Any, what: str) -> ServerError:
    status = response.status_code
    if response.is_redirect:
        return ServerError(
            f"{url}: {what}: the server answered {status} and points to "
            f"{response.headers.get('location', '')[:200]!r}; redirects are not followed. {WHO}"
        )
    detail = data.get("detail") if isinstance(data, dict) else None
    if isinstance(detail, list | dict):
        detail = json.dumps(detail)[:500]
    message = f"{url}: {what}: the server answered {status}: {str(detail or response.text[:500])[:2100]}"
    return ServerGoneError(message) if status in (502, 503, 504) else ServerError(message)
