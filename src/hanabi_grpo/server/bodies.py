"""Bounds on every request body: its size, its pace and how many at once, before a route sees the request.

The bounds hold for all routes, also for those that leave reading to the framework: a body that breaks one ends in
this middleware's answer, whatever the route made of the interrupted read.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanabi_grpo.errors import RequestError, shown
from hanabi_grpo.server.answers import problem
from hanabi_grpo.server.limits import BodyRule, Limits, body_rule

logger = logging.getLogger(__name__)


class BoundedBodies:
    """ASGI middleware that refuses bodies: too large (413), too slow (408), of another type (415), too many (429)."""

    def __init__(self, app: ASGIApp, *, limits: Limits, is_owner: Callable[[Mapping[str, str]], bool]) -> None:
        """Guard `app`.

        Args:
            app: What is guarded.
            limits: What a client may use.
            is_owner: Whether headers are those of the session's trainer, whose requests are counted apart: guests
                cannot take its places.
        """
        self._app, self._limits, self._is_owner = app, limits, is_owner
        self._open = Counter[tuple[str, bool, str]]()
        """Requests that are read or answered: of what kind, whether of the session's trainer, and from where."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rule, headers = body_rule(scope["method"], scope["path"], self._limits), Headers(scope=scope)
        peer = str(scope["client"][0]) if scope.get("client") else "an unknown address"
        mine = (rule.what, rule.at_once is not None and self._is_owner(headers), peer)
        try:
            body = _Body(receive, rule, self._limits, _check_head(scope["method"], headers, rule))
            self._check_number(mine, rule)
        except RequestError as error:
            await problem(error.status, str(error))(scope, receive, send)
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if body.refused is not None and not started:
                return  # The route answers to an interrupted read; the reason is known here.
            started = True
            await send(message)

        self._open[mine] += 1
        try:
            await self._app(scope, body.receive, answer)
        except RequestError:
            if body.refused is None:
                raise
        except ClientDisconnect:
            # Nobody is left to be told.
            logger.info("a client hung up in the middle of its %s", rule.what)
        finally:
            self._open[mine] -= 1
            self._open += Counter()  # forgets those at 0
        if body.refused is not None and not started:
            # The rest of a large body is read and thrown away for a while: closing at once would reset the connection,
            # and the client would never see the reason.
            refusal = problem(body.refused.status, str(body.refused), close=body.refused.status == 408)
            await refusal(scope, receive, send)

    def _check_number(self, mine: tuple[str, bool, str], rule: BodyRule) -> None:
        what, own, _ = mine
        allowed = self._limits.own_at_once if own else rule.at_once
        others = {peer: number for (*kind, peer), number in self._open.items() if kind == [what, own] and number}
        number = sum(others.values())
        if rule.at_once is not None and allowed is not None and number >= allowed:
            peers = ", ".join(f"{number} of {peer}" for peer, number in Counter(others).most_common(5))
            message = f"{number} are open already ({peers}), allowed are {allowed} at once. Wait for one to end."
            raise RequestError(429, f"{what}: {message}")


class _Body:
    """One body on its way in."""

    def __init__(self, receive: Receive, rule: BodyRule, limits: Limits, expected: int | None) -> None:
        self._receive, self._rule, self._limits, self._expected = receive, rule, limits, expected
        self._size, self._complete = 0, False
        self._start: float | None = None
        self.refused: RequestError | None = None

    async def receive(self) -> Message:
        if self.refused is not None:
            raise self.refused
        if self._complete:
            # What remains is waiting for the client to hang up, which may take as long as the games.
            return await self._receive()
        try:
            message = await self._next()
            if message["type"] == "http.request":
                self._size += len(message.get("body", b""))
                self._complete = not message.get("more_body", False)
                self._check()
            return message
        except RequestError as error:
            self.refused = error
            raise

    async def _next(self) -> Message:
        self._start = self._start or time.monotonic()
        # When the event loop itself was held up, the data may be here all the same: so a second, short look.
        for seconds in (self._limits.chunk_seconds, 0.05):
            try:
                async with asyncio.timeout(seconds):
                    return await self._receive()
            except TimeoutError:
                pass
        silence = f"nothing came for {self._limits.chunk_seconds:g} s"
        raise RequestError(408, f"{self._got()}; {silence}. Send it again.")

    def _check(self) -> None:
        if self._size > self._rule.max_bytes:
            raise _too_large(self._rule, f"more than {self._rule.max_bytes}")
        elapsed = time.monotonic() - (self._start or 0.0)
        slowest = self._limits.body_bytes_per_second
        if not self._complete and elapsed > self._limits.chunk_seconds and self._size < slowest * elapsed:
            pace = f"in {elapsed:.0f} s; the slowest allowed is {slowest} bytes per second"
            raise RequestError(408, f"{self._got()} {pace}. Send it again.")

    def _got(self) -> str:
        expected = "an unknown number" if self._expected is None else self._expected
        return f"{self._rule.what}: {self._size} of {expected} bytes received"


def _too_large(rule: BodyRule, size: object) -> RequestError:
    return RequestError(413, f"{rule.what}: {size} bytes; allowed are at most {rule.max_bytes}. Send less at once.")


def _check_head(method: str, headers: Headers, rule: BodyRule) -> int | None:
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
