"""Who is let in on every route, known or not: whoever has the key, or without one programs of this machine."""

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from hanabi_grpo.errors import shown
from hanabi_grpo.server.answers import problem

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


class KeyCheck:
    """ASGI middleware that refuses strangers before anything of a request is looked at.

    With a key: 401 unless a request carries `Authorization: Bearer <key>` exactly once. Without one: 403 to the pages
    of a browser. A page of any site can send requests to 127.0.0.1. With a name of its own that resolves to this
    machine it even reads the answers (DNS rebinding), but its name then stands in the Host header.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, host: str) -> None:
        """Guard `app`, which listens on the address `host`."""
        self._app = app
        self._digest = hashlib.sha256(api_key.encode()).digest() if api_key else None
        bracketed = f"[{host}]" if ":" in host else host
        self._names = tuple(dict.fromkeys((*LOCAL_NAMES, bracketed.lower())))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            status = 403 if self._digest is None else 401
            reason = self._page(scope) if self._digest is None else self._wrong_key(scope, self._digest)
            if reason is not None:
                await problem(status, reason)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _wrong_key(self, scope: Scope, digest: bytes) -> str | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        # Two of them leave open which one counts, here and in any proxy before.
        scheme, _, key = given[0].strip().partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # Digests have equal length, so the time of the comparison says nothing of the key.
        is_same = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), digest)
        if is_same and scheme.lower() == b"bearer":
            return None
        return "wrong or missing key: set HANABI_API_KEY to the server's value in this terminal too."

    def _page(self, scope: Scope) -> str | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"host", b"").decode("latin-1")
        # What follows the last bracket is the port; an address without one has colons only inside brackets.
        name = given[: given.rfind("]") + 1] or given.partition(":")[0]
        if name.lower() not in self._names:
            return (
                f"host {shown(given)}: a server without a key answers to {', '.join(self._names)}. Name it so in "
                "VLLM_SERVER_HOST, or set HANABI_API_KEY in both terminals."
            )
        site = headers.get(b"sec-fetch-site", b"none").decode("latin-1")
        if site not in ("none", "same-origin"):
            return (
                f"sec-fetch-site {shown(site)}: a page of another site asks, and a server without a key answers none. "
                "Use a program instead of the page, or set HANABI_API_KEY in both terminals."
            )
        return None
