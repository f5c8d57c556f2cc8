"""What every route needs: a body within its limits, a problem as JSON."""

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from hanabi_grpo.errors import SettingsError

MAX_BODY_BYTES = 2 << 30


async def read_body(request: Request) -> bytes:
    """Return the body of a request, bounded."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise SettingsError(f"body of more than {MAX_BODY_BYTES} bytes; allowed is {MAX_BODY_BYTES}.")
        chunks.append(chunk)
    return b"".join(chunks)


def problem(status: int, message: str) -> Response:
    """Return an error answer."""
    return JSONResponse({"detail": message}, status_code=status)
