"""The key on every route, known or not."""

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from hanabi_grpo.server.answers import problem


class KeyCheck:
    """ASGI middleware that answers 401 unless a request carries `Authorization: Bearer <key>` exactly once."""

    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        """Guard `app`; None lets everybody in."""
        self._app = app
        self._digest = hashlib.sha256(api_key.encode()).digest() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it before anything of it is looked at."""
        if scope["type"] == "http" and self._digest is not None and not self._has_key(scope):
            refusal = problem(
                401, "wrong or missing key: set HANABI_API_KEY to the server's value in this terminal too."
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            # Two of them leave open which one counts, here and in any proxy before.
            return False
        scheme, _, key = given[0].strip().partition(b" ")
        # Digests have equal length, so the time of the comparison says nothing of the key.
        same = hmac.compare_digest(hashlib.sha256(key.strip()).digest(), self._digest or b"")
        return same and scheme.lower() == b"bearer"
