"""What every route needs: a body within its limits, and errors as JSON."""

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import (
    AdapterError,
    GameParameterError,
    HanabiGrpoError,
    RequestError,
    SettingsError,
    VersionError,
)

MAX_BODY_BYTES = 2 << 30
_MAX_DETAIL = 2000
"""Characters of a reason; a refused value may be as long as a body."""


async def read_body(request: Request, *, limit: int = MAX_BODY_BYTES, what: str = "request body") -> bytes:
    """Return the body of a request.

    The middleware `BoundedBodies` bounds every body in size and time; a route that knows a tighter limit gives it here.

    Args:
        request: The request.
        limit: Most bytes.
        what: Name for messages.

    Raises:
        RequestError: 413, before reading where the client says the length, else while reading.
    """
    length = request.headers.get("content-length")
    if length is not None and length.isdecimal() and int(length) > limit:
        raise RequestError(413, f"{what}: {int(length)} bytes; allowed are at most {limit}. Send less at once.")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestError(413, f"{what}: more than {limit} bytes; allowed are at most {limit}. Send less at once.")
        chunks.append(chunk)
    return b"".join(chunks)


def problem(status: int, message: str, *, close: bool = False) -> Response:
    """Return an error answer.

    Args:
        status: HTTP status.
        message: The reason; cut when it is very long, and made printable where it quotes what is no text.
        close: Whether to end the connection, because the rest of a body is not wanted.
    """
    if len(message) > _MAX_DETAIL:
        message = f"{message[:_MAX_DETAIL]}… ({len(message)} characters)"
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    return JSONResponse({"detail": text}, status_code=status, headers={"connection": "close"} if close else None)


def status_of(error: HanabiGrpoError, *, engine_dead: bool) -> int:
    """Return the HTTP status that says of whom an error speaks: 4xx of the request, 5xx of the server."""
    if isinstance(error, RequestError):
        return error.status
    if engine_dead:
        # Whatever failed, it may succeed once the engine is back.
        return 503
    if isinstance(error, VersionError):
        return 409
    return 422 if isinstance(error, AdapterError | SettingsError | GameParameterError) else 500
