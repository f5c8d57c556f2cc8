"""The server's door: who is let in, how much of what each request may bring, and a refusal as JSON.

The bounds hold for every route. A body is read here, to its end or to the bound that it breaks, before a route sees
the request.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanabi_grpo.errors import RequestError, shown

logger = logging.getLogger(__name__)

_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
RETRY_SECONDS = 5
"""After which a request that came at a bad moment may be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may use. Tests give shorter times; the server uses the defaults and its own adapter size."""

    rollout_bytes: int = 8 << 20
    """Body of a rollout or reply; a task takes about 350 bytes, and `messages.MAX_TASKS` of them are allowed."""
    adapter_bytes: int = 2 << 30
    """Body of one adapter upload; `max_adapter_bytes` knows what the base model can have."""
    other_bytes: int = 1 << 20
    header_bytes: int = 64 << 10
    """Request line and headers together."""
    head_seconds: float = 30.0
    """To send a whole request head, counted from the connection's start or its last answer."""
    chunk_seconds: float = 20.0
    """Longest silence inside a body."""
    body_bytes_per_second: int = 16 << 10
    """Slowest body, as a mean over all of it; looked at after `chunk_seconds`."""
    connections: int = 256
    """Open at once. Twice as many are let in to be told so."""
    rollouts_at_once: int = 16
    """Rollout requests of guests read, waiting or played at once."""
    own_at_once: int = 4
    """Requests of each kind that the session's trainer may have open, however many guests have."""
    uploads_at_once: int = 4
    """Adapters that are lent, and uploads of others than the trainer, which are read before they are refused."""
    replies_at_once: int = 64


def problem(status: int, message: str, *, close: bool = False, again: bool = False) -> Response:
    """Return an error answer, printable where it quotes what is no text.

    `close` ends the connection, because the rest of a body is not wanted. `again` says that the same request may
    succeed later; 408 and 429 say so by themselves.
    """
    text = message.encode("utf-8", "backslashreplace").decode("utf-8")
    headers = {"connection": "close"} if close else {}
    if again or status in (408, 429):
        headers["retry-after"] = str(RETRY_SECONDS)
    return JSONResponse({"detail": text}, status_code=status, headers=headers)


class KeyCheck:
    """ASGI middleware that refuses strangers before anything of a request is looked at.

    With a key: 401 unless a request carries `Authorization: Bearer <key>` exactly once. Without one: 403 to the pages
    of a browser. A page of any site can send requests to 127.0.0.1. With a name of its own that resolves to this
    machine it even reads the answers (DNS rebinding), but its name, not our `host`, then stands in the Host header.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, host: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(api_key.encode()).digest() if api_key else None
        bracketed = f"[{host}]" if ":" in host else host
        self._names = tuple(dict.fromkeys((*_LOCAL_NAMES, bracketed.lower())))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        status = 403 if self._digest is None else 401
        reason = self._page(scope) if self._digest is None else self._wrong_key(scope, self._digest)
        await (self._app if reason is None else problem(status, reason))(scope, receive, send)

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


class _Rule(NamedTuple):
    what: str
    max_bytes: int
    at_once: int | None
    """How many such requests may be open; None: as many as there are connections."""
    content_type: str | None
    """It must be named by a POST and may be by a PUT; None: any, since nobody reads the body."""


def _rule_of(method: str, path: str, limits: Limits) -> _Rule:
    json, octets = "application/json", "application/octet-stream"
    rules = {
        "POST /rollout": _Rule("rollout request", limits.rollout_bytes, limits.rollouts_at_once, json),
        "POST /reply": _Rule("reply request", limits.rollout_bytes, limits.replies_at_once, json),
        "POST /v1": _Rule("chat request", limits.rollout_bytes, limits.replies_at_once, json),
        "PUT /adapters": _Rule("adapter upload", limits.adapter_bytes, limits.uploads_at_once, octets),
        # Counted apart, so that lent adapters never keep a trainer from pushing.
        "PUT /frozen": _Rule("lent adapter", limits.adapter_bytes, limits.uploads_at_once, octets),
    }
    other = _Rule("request body", limits.other_bytes, None, json if path.startswith("/session") else None)
    return rules.get(f"{method} /{path.removeprefix('/').partition('/')[0]}", other)


class BoundedBodies:
    """ASGI middleware that refuses bodies: too large (413), too slow (408), of another type (415), too many (429).

    Requests whose headers `is_owner` are counted apart, so that guests cannot take their places.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, is_owner: Callable[[Mapping[str, str]], bool]) -> None:
        self._app, self._limits, self._is_owner = app, limits, is_owner
        self._open = Counter[tuple[str, bool, str]]()
        """Requests that are read or answered: of what kind, whether of the session's trainer, and from where."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its whole body, or answer why not."""
        rule, headers = _rule_of(scope["method"], scope["path"], self._limits), Headers(scope=scope)
        peer = str(scope["client"][0]) if scope.get("client") else "an unknown address"
        mine = (rule.what, rule.at_once is not None and self._is_owner(headers), peer)
        try:
            expected = _check_head(scope["method"], headers, rule)
            self._check_number(mine, rule)
            self._open[mine] += 1
            try:
                body = await self._read(receive, rule, expected)
                if body is not None:
                    await self._app(scope, _body_then(body, receive), send)
            finally:
                self._open[mine] -= 1
                self._open += Counter()  # forgets those at 0
        except RequestError as error:
            # The rest of a large body is read and thrown away for a while: closing at once would reset the connection,
            # and the client would never see the reason.
            await problem(error.status, str(error), close=error.status == 408)(scope, receive, send)

    def _check_number(self, mine: tuple[str, bool, str], rule: _Rule) -> None:
        what, own, _ = mine
        others = Counter({peer: number for (*kind, peer), number in self._open.items() if kind == [what, own]})
        number, allowed = others.total(), self._limits.own_at_once if own else rule.at_once
        if rule.at_once is not None and allowed is not None and number >= allowed:
            peers = ", ".join(f"{number} of {peer}" for peer, number in others.most_common(5))
            message = f"{number} are open already ({peers}), allowed are {allowed} at once. Wait for one to end."
            raise RequestError(429, f"{what}: {message}")

    async def _read(self, receive: Receive, rule: _Rule, expected: int | None) -> bytes | None:
        """Return a whole body; None: the client hung up in the middle of it."""
        limits, start, body, more = self._limits, time.monotonic(), bytearray(), True

        def slow(how: str) -> RequestError:
            all_of_it = "an unknown number" if expected is None else expected
            return RequestError(408, f"{rule.what}: {len(body)} of {all_of_it} bytes received{how}. Send it again.")

        while more:
            try:
                async with asyncio.timeout(limits.chunk_seconds):
                    message = await receive()
            except TimeoutError:
                raise slow(f"; nothing came for {limits.chunk_seconds:g} s") from None
            if message["type"] == "http.disconnect":
                logger.info("a client hung up in the middle of its %s", rule.what)
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > rule.max_bytes:
                raise _too_large(rule, f"more than {rule.max_bytes}")
            elapsed, slowest = time.monotonic() - start, limits.body_bytes_per_second
            if more and elapsed > limits.chunk_seconds and len(body) < slowest * elapsed:
                raise slow(f" in {elapsed:.0f} s; the slowest allowed is {slowest} bytes per second")
        return bytes(body)


def _body_then(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already, and after it what the connection says: that it has ended."""
    unread = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": unread.pop()} if unread else await receive()

    return replay


def _too_large(rule: _Rule, size: object) -> RequestError:
    return RequestError(413, f"{rule.what}: {size} bytes; allowed are at most {rule.max_bytes}. Send less at once.")


def _check_head(method: str, headers: Headers, rule: _Rule) -> int | None:
    """Return the length that the headers name."""
    given, allowed = headers.get("content-type", "").partition(";")[0].strip().lower(), rule.content_type
    if given and allowed and given != allowed:
        raise RequestError(415, f"{rule.what}: content-type {shown(given)}; allowed is {allowed}.")
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("identity", ""):
        raise RequestError(415, f"{rule.what}: content-encoding {shown(encoding)}; send it uncompressed.")
    # h11 has made sure that it is one number; its own bound of 20 digits keeps int() harmless.
    length = int(headers["content-length"]) if "content-length" in headers else None
    if length is not None and length > rule.max_bytes:
        raise _too_large(rule, length)
    if (length or "transfer-encoding" in headers) and allowed and not given and method == "POST":
        # Without one a browser posts a body for any page; with one, and with PUT, it asks first and is refused.
        raise RequestError(415, f"{rule.what}: a body without content-type; send content-type: {allowed}.")
    return length
