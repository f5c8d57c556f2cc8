"""The server's door: who is let in, with how much of what, and a refusal as JSON."""

import hmac
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanabi_grpo.errors import shown

_LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
_BODY_BYTES = 24 << 20
"""Of a request that is no upload; a task takes about 350 bytes, and `messages.MAX_TASKS` of them
are allowed.
"""
RETRY_SECONDS = 5
"""After which a request that came at a bad moment may be sent again."""


def problem(status: int, message: str, *, again: bool = False) -> Response:
    """Return an error answer, printable where it quotes what is no text; `again`: the request may
    succeed later.
    """
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    headers = {"retry-after": str(RETRY_SECONDS)} if again else {}
    return JSONResponse({"detail": text}, status_code=status, headers=headers)


class KeyCheck:
    """ASGI middleware that refuses strangers before anything of a request is looked at.

    With a key: 401 unless a request carries `Authorization: Bearer <key>`. Without one: 403 to the
    pages of a browser. A page of any site can send requests to 127.0.0.1. With a name of its own
    that resolves to this machine it even reads the answers (DNS rebinding), but its name, not our
    `host`, then stands in the Host header."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, host: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode() if api_key else None
        self._names = tuple(dict.fromkeys((*_LOCAL_NAMES, host.lower())))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        headers = Headers(scope=scope)
        if self._expected is None:
            status, reason = 403, self._page(headers)
        else:
            is_right = hmac.compare_digest(
                headers.get("authorization", "").encode("latin-1"), self._expected
            )
            wrong = (
                "wrong or missing key: set HANABI_API_KEY to the server's value in this "
                "terminal too."
            )
            status, reason = 401, "" if is_right else wrong
        await (problem(status, reason) if reason else self._app)(scope, receive, send)

    def _page(self, headers: Headers) -> str:
        host, site = headers.get("host", ""), headers.get("sec-fetch-site", "none")
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name in self._names and site in ("none", "same-origin"):
            return ""
        return (
            f"host {shown(host)}, sec-fetch-site {shown(site)}: a server without a key answers "
            "programs that call it "
            f"{', '.join(self._names)}, and no pages. Name it so in VLLM_SERVER_HOST, or set "
            "HANABI_API_KEY in both "
            "terminals."
        )


class BodyCheck:
    """ASGI middleware for bodies: 413 for one that is too large, 415 for one that a browser posts
    for any page.

    `upload_bytes` bounds what is PUT: adapters.
    """

    def __init__(self, app: ASGIApp, *, upload_bytes: int) -> None:
        self._app, self._upload_bytes = app, upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; what it has too much of is found while it is read."""
        is_upload, headers, size = scope["method"] == "PUT", Headers(scope=scope), 0
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        # One that is named is no simple request: a browser asks before, and is refused. So it does
        # before every PUT.
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if kind != "application/json" and scope["method"] == "POST" and has_body:
            given = shown(kind) if kind else "none"
            message = f"{scope['path'][:200]}: content-type {given}; allowed is application/json."
            await problem(415, message)(scope, receive, send)
            return
        allowed = self._upload_bytes if is_upload else _BODY_BYTES

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > allowed:
                raise HTTPException(
                    413, f"a body of more than {allowed} bytes, the most that is allowed here."
                )
            return message

        await self._app(scope, counted, send)
