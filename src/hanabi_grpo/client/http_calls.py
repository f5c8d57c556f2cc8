"""One HTTP call to the rollout server: what came back as JSON, or an error that says whom to ask and what to do."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import msgspec
from pydantic import BaseModel, ValidationError

from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.runs.structs import read_struct

logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer", bound=BaseModel)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
WHO = "Does a rollout server of this version listen there? Check VLLM_SERVER_HOST and VLLM_SERVER_PORT."
_PAUSE = 0.5
_SAY_SECONDS = 60.0
_LATER = (408, 409, 429, 503)
"""Statuses that mean "later" where the answer has a Retry-After."""


def call_json(url: str, call: Callable[[], httpx.Response], what: str, *, tries: int, patience: float = 0.0) -> Any:
    """Make a call and return the JSON of its answer, see `call_bytes`.

    Raises:
        ServerGoneError: As `call_bytes`.
        ServerError: As `call_bytes`, and an answer that is not JSON.
    """
    content = call_bytes(url, call, what, tries=tries, patience=patience)
    data = _parsed(content)
    if data is None:
        raise _no_json(url, content, what)
    return data


def call_struct(
    url: str,
    call: Callable[[], httpx.Response],
    kind: type[_Struct],
    what: str,
    *,
    tries: int,
    patience: float = 0.0,
) -> _Struct:
    """Make a call and return its answer as a struct, see `call_bytes`.

    Raises:
        ServerGoneError: As `call_bytes`.
        ServerError: As `call_bytes`, and an answer that does not fit; it names the field.
    """
    content = call_bytes(url, call, what, tries=tries, patience=patience)
    try:
        return read_struct(kind, content)
    except ValueError as error:
        if _parsed(content) is None:
            raise _no_json(url, content, what) from None
        raise ServerError(f"{url}: {what}: the answer does not fit ({error}): {_start(content)!r}. {WHO}") from None


def call_bytes(url: str, call: Callable[[], httpx.Response], what: str, *, tries: int, patience: float = 0.0) -> bytes:
    """Make a call and return its answer.

    A server that is busy with what others asked for says so, with a Retry-After: the call is made again after that
    time, which does no harm, since a server that says so did nothing.

    Args:
        url: Of the server, for messages.
        call: Makes the request; called again after a lost connection.
        what: Name of the call, for messages.
        tries: How often a connection may be lost; 1 where a repeat would do harm.
        patience: Seconds to go on asking a busy server, all together.

    Raises:
        ServerGoneError: Not reached, no answer in time, hung up, or 502, 503 and 504.
        ServerError: Any other answer than 200, or a request that cannot be sent.
    """
    start, said = time.monotonic(), float("-inf")
    while True:
        response = _response(url, call, what, tries)
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


def _no_json(url: str, content: bytes, what: str) -> ServerError:
    return ServerError(f"{url}: {what}: the answer is not JSON, or only a part of it: {_start(content)!r}. {WHO}")


def _start(content: bytes) -> str:
    return content[:200].decode("utf-8", "replace")


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def as_object(url: str, data: Any, what: str) -> dict[str, Any]:
    """Return an answer that must be a JSON object.

    Raises:
        ServerError: It is not.
    """
    if not isinstance(data, dict):
        raise ServerError(f"{url}: {what}: the answer is no JSON object: {str(data)[:200]!r}. {WHO}")
    return data


def as_model(url: str, model: type[_Answer], data: Any, what: str) -> _Answer:
    """Return an answer with its fields checked.

    Raises:
        ServerError: A field is missing or malformed.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "all of it"
        raise ServerError(
            f"{url}: {what}: the answer does not fit ({name}: {first['msg']}): {str(data)[:200]!r}. {WHO}"
        ) from error


def _response(url: str, call: Callable[[], httpx.Response], what: str, tries: int) -> httpx.Response:
    start, attempt = time.monotonic(), 1
    while True:
        try:
            return call()
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
