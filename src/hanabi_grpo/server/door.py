"""Access checks of the server: which clients are admitted, size of bodies, and errors as JSON."""

import asyncio
import hmac
import re
import time
from collections.abc import Callable, Collection, Mapping

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanabi_grpo.errors import shown

RETRY_SECONDS = 5
"""Seconds after which a request that failed temporarily may be sent again."""

UNAUTHORIZED = 401
FORBIDDEN = 403
TOO_LARGE = 413
WRONG_TYPE = 415
TIMEOUT = 408
UNAVAILABLE = 503

CROWDED = "connection_limit"
"""Entry in a request's state: the limit that its connection exceeds, see `connections`."""
_LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
_BODY_BYTES = 24 << 20
"""Largest body of a request that is not an upload.

A task takes about 350 bytes, and `messages.MAX_TASKS` of them are allowed."""
_BODY_SECONDS = 20.0
"""Longest wait for the next piece of a body, and time after which `_SLOWEST` applies."""
_SECOND_LOOK = 0.05
"""Extra seconds for a piece that arrived while the event loop was blocked."""
_SLOWEST = 64 << 10
"""Minimum bytes per second of a body; the client's own limit is 1 MiB."""
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII)
"""A Host header without user names, which some programs would read as a different host."""
_JSON = "application/json"
_SHOWN_PATH = 200
"""Characters of a request's path in a message."""
_WRONG_KEY = "wrong or missing key: set HANABI_API_KEY to the server's value in this terminal too."


def problem(status: int, message: str, *, again: bool = False) -> Response:
    """Return an error answer.

    Args:
        status: The HTTP status.
        message: The error message. Invalid Unicode in it is escaped.
        again: Whether the same request may succeed later.

    Returns:
        JSON with the message as `detail`.
    """
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    headers = {"retry-after": str(RETRY_SECONDS)} if again else {}
    return JSONResponse({"detail": text}, status_code=status, headers=headers)


class KeyCheck:
    """ASGI middleware that rejects strangers before anything in a request is read.

    With a key: 401 unless a request has `Authorization: Bearer <key>`. Without a key: 403 for web
    pages. A page of any site can send requests to 127.0.0.1. With a domain that resolves to this
    machine it could even read the answers (DNS rebinding), but then the Host header has that
    domain, not our `host`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_key: str | None,
        host: str,
        open_paths: Collection[str] = (),
    ) -> None:
        """Wrap an app.

        Args:
            app: The wrapped app.
            api_key: The key; None for none.
            host: Address that the server listens on.
            open_paths: Paths of static pages that GET returns without the key: a browser cannot
                send the key before a page has asked for it.
        """
        self._app = app
        self._open_paths = frozenset(open_paths)
        self._expected = f"Bearer {api_key}".encode() if api_key else None
        self._names = tuple(dict.fromkeys((*_LOCAL_NAMES, host.lower())))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        refusal = None
        # Otherwise the scope is "lifespan", the app's start and end, which has no headers.
        if scope["type"] in ("http", "websocket") and not self._is_open(scope):
            refusal = self._refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        """Tell whether a request may get a static page without the server's key."""
        if self._expected is None or scope["type"] != "http" or scope["method"] != "GET":
            return False
        return scope["path"] in self._open_paths

    def _refusal(self, headers: Headers) -> Response | None:
        if self._expected is None:
            return self._origin_refusal(headers) or self._browser_refusal(headers)
        given = headers.get("authorization", "").encode("latin-1")
        if hmac.compare_digest(given, self._expected):
            return None
        return problem(UNAUTHORIZED, _WRONG_KEY)

    def _origin_refusal(self, headers: Headers) -> Response | None:
        """Reject requests from pages other than our own.

        Browsers let any page open a WebSocket to any host. They always send the page's origin with
        it, but not all send `sec-fetch-site`. Programs do not send an origin.
        """
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2] == headers.get("host"):
            return None
        return problem(
            FORBIDDEN,
            f"origin {shown(origin)}: a server without a key accepts requests from programs, not "
            "from pages of other sites. Call it from a program, or set HANABI_API_KEY on both "
            "sides.",
        )

    def _browser_refusal(self, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        site = headers.get("sec-fetch-site", "none")
        match = _HOST.fullmatch(host.lower())
        name = match["name"].strip("[]") if match else None
        if name in self._names and site in ("none", "same-origin"):
            return None
        return problem(
            FORBIDDEN,
            f"host {shown(host)}, sec-fetch-site {shown(site)}: a server without a key accepts "
            f"only requests to {', '.join(self._names)}, and none from web pages. Set "
            "VLLM_SERVER_HOST to one of these names, or set HANABI_API_KEY in both terminals.",
        )


class CrowdCheck:
    """ASGI middleware: 503 on connections beyond the limit, except for the session's trainer."""

    def __init__(self, app: ASGIApp, *, is_owner: Callable[[Mapping[str, str]], bool]) -> None:
        """Wrap an app.

        Args:
            app: The wrapped app.
            is_owner: Tells from a request's headers whether it is the session's trainer's.
        """
        self._app = app
        self._is_owner = is_owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it and close its connection."""
        limit = scope.get("state", {}).get(CROWDED)
        if limit is None or self._is_owner(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        refusal = problem(
            UNAVAILABLE,
            f"{limit} connections are open, the maximum of this server, and all are busy. "
            "Try again later.",
            again=True,
        )
        refusal.headers["connection"] = "close"
        await refusal(scope, receive, send)


class BodyCheck:
    """ASGI middleware for bodies.

    413 for a body that is too large, 408 for one that arrives too slowly, 415 for one that a
    browser would post for any page.
    """

    def __init__(self, app: ASGIApp, *, upload_bytes: int) -> None:
        """Wrap an app.

        Args:
            app: The wrapped app.
            upload_bytes: Largest body of a PUT request, which is an adapter.
        """
        self._app = app
        self._upload_bytes = upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; a body that is too large is noticed while it is read."""
        headers = Headers(scope=scope)
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        # A request with this content type is not "simple": a browser first sends a preflight
        # request, which is rejected. The same holds for every PUT.
        if content_type != _JSON and scope["method"] == "POST" and has_body:
            given = shown(content_type) if content_type else "none"
            message = f"{scope['path'][:_SHOWN_PATH]}: content-type {given}; allowed is {_JSON}."
            await problem(WRONG_TYPE, message)(scope, receive, send)
            return
        is_upload = scope["method"] == "PUT"
        limit = self._upload_bytes if is_upload else _BODY_BYTES
        num_bytes = 0
        is_complete = False
        begin = time.monotonic()

        async def receive_limited() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                # All that remains is to wait for the client to disconnect, as long as games take.
                return await receive()
            message = await _receive_in_time(receive, num_bytes)
            num_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if num_bytes > limit:
                raise HTTPException(
                    TOO_LARGE, f"the body has more than {limit} bytes, the maximum allowed here."
                )
            seconds = time.monotonic() - begin
            if not is_complete and seconds > _BODY_SECONDS and num_bytes < _SLOWEST * seconds:
                raise HTTPException(
                    TIMEOUT,
                    f"only {num_bytes} bytes of the body arrived in {seconds:.0f} s; the minimum "
                    f"is {_SLOWEST} bytes per second. Send it again.",
                )
            return message

        await self._app(scope, receive_limited, send)


async def _receive_in_time(receive: Receive, num_bytes: int) -> Message:
    """Return the next piece of a body.

    Args:
        receive: Waits for the piece.
        num_bytes: Bytes of the previous pieces, for the message.

    Raises:
        HTTPException: It did not arrive in time.
    """
    for seconds in (_BODY_SECONDS, _SECOND_LOOK):
        try:
            async with asyncio.timeout(seconds):
                return await receive()
        except TimeoutError:
            continue
    raise HTTPException(
        TIMEOUT,
        f"no data for {_BODY_SECONDS:g} s after {num_bytes} bytes of the body. Send it again.",
    )
