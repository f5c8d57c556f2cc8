"""Calls to the models of HANABI_PARTNER_URLS: retried, limited, counted and recorded.

Partners (`url_model`) and the judge (`judge`) make their calls here, each with its own budgets,
limits and transcript. Every call of which something was sent is a line of the transcript, even if
it is cancelled.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hanabi_grpo.agents.url_client import CallFailedError, UrlClient, UrlSampling, Usage
from hanabi_grpo.agents.url_transcript import Transcript
from hanabi_grpo.errors import PartnerDownError
from hanabi_grpo.settings.values import PartnerUrl

logger = logging.getLogger(__name__)

PAUSES = (2.0, 8.0, 32.0)
"""Seconds before the second and each later try.

A Retry-After header takes precedence, up to the timeout of a call.
"""
MAX_FAILED_CALLS = 3
"""Number of consecutive failed calls that end a request."""
_REMINDER_SECONDS = 60.0
"""Minimum time between two log lines about the same URL."""
_DIGEST_LENGTH = 16
"""Hexadecimal digits of the hash of a call's messages in the transcript."""
_CANCELLED = "cancelled: nobody waits for the reply any more."
"""Why a cancelled call has no reply, or one that was not used."""
_TEMPLATE_TOKENS = 16
"""Most tokens that a chat template adds to a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one call after all its tries."""

    reply: str = ""
    reason: str = ""
    """Why the call failed; empty if it succeeded."""
    usage: Usage = field(default_factory=Usage)
    tries: int


@dataclass(slots=True, kw_only=True)
class Budget:
    """Limit on the total tokens of some calls, as the URLs count them.

    The tokens of a call are known when it ends. If all calls in progress together could exceed the
    limit, further ones wait, so only the last call can exceed it.
    """

    variable: str
    """The setting that limits it."""
    limit: int | None
    """None: no limit."""
    spent: int
    """Tokens of prompts and replies, as the URLs counted them."""
    _reserved: int = field(default=0, init=False)
    """Most tokens that the calls in progress may cost."""
    _waiting: "list[asyncio.Future[None]]" = field(default_factory=list, init=False)
    """Calls that wait until one in progress has ended."""

    async def reserve(self, tokens: int) -> None:
        """Set tokens aside for a call, which must `release` them when it has ended.

        Args:
            tokens: Most tokens that the call may cost.

        Raises:
            PartnerDownError: Nothing is left.
        """
        self.check()
        while self._reserved and self._exceeds(tokens):
            ended = asyncio.get_running_loop().create_future()
            self._waiting.append(ended)
            try:
                await ended
            finally:
                self._waiting.remove(ended)
            self.check()
        self._reserved += tokens

    def _exceeds(self, tokens: int) -> bool:
        """Return whether a further call could exceed the limit."""
        return self.limit is not None and self.spent + self._reserved + tokens > self.limit

    def release(self, tokens: int) -> None:
        """Return what a call had reserved; what it cost is in `spent`."""
        self._reserved -= tokens
        for ended in self._waiting:
            if not ended.done():
                ended.set_result(None)

    def check(self) -> None:
        """Raise a PartnerDownError when nothing is left."""
        if self.limit is None or self.spent < self.limit:
            return
        raise PartnerDownError(
            f"{self.variable}={self.limit}: the URLs of HANABI_PARTNER_URLS have used "
            f"{self.spent} tokens, so they are no longer called. Restart the server, which counts "
            f"from 0 again, with the remaining budget in {self.variable}, then run the same "
            "command again, in training with RESUME=latest."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """How long calls may take, and how many are made at the same time."""

    seconds: float
    """Timeout of one call."""
    variable: str
    """The setting of the timeout."""
    at_once: int
    length_variable: str
    """The setting that limits a reply's length, for the error about an empty reply."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """A call that has its place among the concurrent ones."""

    spec: str
    messages: list[dict[str, str]]
    sampling: UrlSampling
    budget: Budget
    where: Mapping[str, Any]
    """Seat, task and game, for the transcript."""
    by_guest: bool
    start: float = field(default_factory=time.monotonic)
    """Time of the first try in seconds."""
    tries: int = 0
    """Number of tries so far, including the one in progress."""
    guest_try: "asyncio.Task[tuple[str, Usage]] | None" = None
    """The newest try of a guest, which may have ended; None: the session's trainer asks."""

    @property
    def most_tokens(self) -> int:
        """Most tokens that a try may cost: a token of text has at least one byte."""
        tokens = self.sampling.max_tokens
        for message in self.messages:
            content = message["content"].encode(errors="surrogatepass")
            tokens += len(content) + _TEMPLATE_TOKENS
        return tokens


class UrlCalls:
    """Calls to models behind URLs. Use it from one event loop only."""

    def __init__(
        self,
        urls: Mapping[str, PartnerUrl],
        *,
        key: str,
        limits: CallLimits,
        transcript: Transcript,
        totals: Callable[[], Mapping[str, int]],
    ) -> None:
        """Prepare the calls; nothing is sent yet.

        Args:
            urls: The URLs by policy spec, e.g. "url:big".
            key: HANABI_PARTNER_KEY; "" for none.
            limits: How long calls may take, and how many are made at once.
            transcript: Where they are recorded.
            totals: Returns the tokens spent so far, written at the end of each transcript line.
        """
        self._urls = urls
        self._limits = limits
        self._transcript = transcript
        self._totals = totals
        self._clients: dict[str, UrlClient] = {}
        for spec, url in urls.items():
            self._clients[spec] = UrlClient(
                url, key=key, timeout=limits.seconds, timeout_variable=limits.variable
            )
        self._free_calls = asyncio.Semaphore(limits.at_once)
        self._free_guest_calls = asyncio.Semaphore(max(1, limits.at_once // 2))
        self._abandoned: set[asyncio.Task[tuple[str, Usage]]] = set()
        """Guests' tries whose result nobody waits for any more, until they end."""
        self._last_reminder: dict[str, float] = {}

    def client(self, spec: str) -> UrlClient:
        """Return the client of one URL, for requests other than conversations."""
        return self._clients[spec]

    def describe(self, spec: str, outcome: Outcome) -> str:
        """Return the sentence on a call that failed."""
        url = self._urls[spec]
        return f"{spec} ({url.base}, {url.model}): {outcome.reason}"

    def down(self, failure: str, num_failed: int) -> PartnerDownError:
        """Return the error for a URL whose calls keep failing.

        Args:
            failure: The last failure.
            num_failed: Number of consecutive failed calls.
        """
        return PartnerDownError(
            f"{failure} {num_failed} calls in a row failed like this, so the URL is no longer "
            f"called. All calls are recorded in {self._transcript.path}. When it responds again, "
            "run the same command again, in training with RESUME=latest."
        )

    async def ask(
        self,
        spec: str,
        messages: list[dict[str, str]],
        sampling: UrlSampling,
        *,
        budget: Budget,
        where: Mapping[str, Any],
        by_guest: bool = False,
        check: Callable[[], None] | None = None,
    ) -> Outcome:
        """Make one call, and retry it after each transient failure.

        A cancelled call is not retried. The try in progress is cancelled too, and costs no budget.
        That of a guest goes on and keeps its place: its tokens count, so hanging up saves none.

        Args:
            spec: The URL, e.g. "url:big".
            messages: The conversation in the format of OpenAI's API.
            sampling: Sampling parameters of the reply.
            budget: The budget that the tokens are taken from.
            where: Seat, task and game, for the transcript.
            by_guest: Whether a client other than the session's trainer asks. Guests make at most
                half of the concurrent calls.
            check: Called when the call has its place, before anything is sent; what it raises is
                passed on. None: no check.

        Returns:
            A reply that is not empty, or why there is none.

        Raises:
            PartnerDownError: The budget is exhausted.
        """
        needed = [self._free_calls]
        if by_guest:
            needed.insert(0, self._free_guest_calls)
        with contextlib.ExitStack() as places:
            for free in needed:
                await free.acquire()
                places.callback(free.release)
            if check is not None:
                check()
            call = _Call(
                spec=spec,
                messages=messages,
                sampling=sampling,
                budget=budget,
                where=where,
                by_guest=by_guest,
            )
            try:
                outcome = await self._try_several_times(call)
            except asyncio.CancelledError:
                if call.guest_try is None:
                    if call.tries:
                        self._record(call, Outcome(reason=_CANCELLED, tries=call.tries))
                else:
                    self._abandoned.add(call.guest_try)
                    ending = partial(self._end_abandoned, call, places.pop_all())
                    call.guest_try.add_done_callback(ending)
                raise
            except PartnerDownError as error:
                if call.tries:
                    self._record(call, Outcome(reason=str(error), tries=call.tries))
                raise
        self._record(call, outcome)
        return outcome

    def _end_abandoned(
        self,
        call: _Call,
        places: contextlib.ExitStack,
        last_try: "asyncio.Task[tuple[str, Usage]]",
    ) -> None:
        """Record a guest's call that was cancelled, and free its places.

        Args:
            call: The call.
            places: Its places among the concurrent calls.
            last_try: Its last try, which has ended.
        """
        self._abandoned.discard(last_try)
        with places:
            try:
                reply, usage = last_try.result()
            except (CallFailedError, asyncio.CancelledError) as error:
                # The try itself is cancelled only when the server shuts down.
                reason = f"{_CANCELLED} {error}".rstrip()
                outcome = Outcome(reason=reason, tries=call.tries)
            else:
                outcome = Outcome(reply=reply, reason=_CANCELLED, usage=usage, tries=call.tries)
            self._record(call, outcome)

    async def _try_several_times(self, call: _Call) -> Outcome:
        max_tries = len(PAUSES) + 1
        for tries in range(1, max_tries + 1):
            await call.budget.reserve(call.most_tokens)
            call.tries = tries
            try:
                if call.by_guest:
                    # Cancelling the call must not cancel the try, whose tokens count.
                    call.guest_try = asyncio.create_task(self._try_once(call))
                    reply, usage = await asyncio.shield(call.guest_try)
                else:
                    reply, usage = await self._try_once(call)
                return Outcome(reply=reply, usage=usage, tries=tries)
            except CallFailedError as error:
                if not error.can_retry or tries == max_tries:
                    return Outcome(reason=str(error), tries=tries)
                pause = error.retry_after
                if pause is None:
                    pause = PAUSES[tries - 1]
                pause = min(pause, self._limits.seconds)
                self._remind(
                    call.spec, f"{error} Try {tries} of {max_tries}; the next in {pause:g} s."
                )
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns")

    async def _try_once(self, call: _Call) -> tuple[str, Usage]:
        """Return a reply and its usage, which counts as spent even if the reply is unusable.

        Tokens have been reserved for the try, which are released at its end.
        """
        try:
            return await self._try_reserved(call)
        finally:
            call.budget.release(call.most_tokens)

    async def _try_reserved(self, call: _Call) -> tuple[str, Usage]:
        """Do what `_try_once` does, without releasing tokens."""
        spec = call.spec
        budget = call.budget
        limits = self._limits
        still_waiting = (
            f"no response for {_REMINDER_SECONDS:g} s; a call times out after {limits.seconds:g} s "
            f"({limits.variable})."
        )
        loop = asyncio.get_running_loop()
        reminder = loop.call_later(_REMINDER_SECONDS, self._remind, spec, still_waiting)
        try:
            completion = await self._clients[spec].complete(call.messages, call.sampling)
        finally:
            reminder.cancel()
        usage = completion.usage or Usage()
        budget.spent += usage.prompt_tokens + usage.completion_tokens
        if budget.limit is not None and not usage.prompt_tokens:
            raise CallFailedError(
                f"its responses do not report token usage, so {budget.variable} cannot be "
                "enforced.",
                can_retry=False,
            )
        if not completion.text.strip():
            raise CallFailedError(
                f"the reply is empty (its thinking may be longer than {limits.length_variable})."
            )
        return completion.text, usage

    def _record(self, call: _Call, outcome: Outcome) -> None:
        url = self._urls[call.spec]
        seconds = time.monotonic() - call.start
        messages_digest = hashlib.sha256(json.dumps(call.messages).encode()).hexdigest()
        self._transcript.append(
            {
                "time": round(time.time(), 3),
                "partner": url.name,
                "model": url.model,
                **call.where,
                "messages": messages_digest[:_DIGEST_LENGTH],
                "prompt": call.messages[-1]["content"],
                "reply": outcome.reply,
                "error": outcome.reason,
                "prompt_tokens": outcome.usage.prompt_tokens,
                "reply_tokens": outcome.usage.completion_tokens,
                "tries": outcome.tries,
                "seconds": round(seconds, 3),
                **self._totals(),
            }
        )

    def _remind(self, spec: str, reason: str) -> None:
        """Log why games are waiting for a URL, at most once a minute."""
        now = time.monotonic()
        last = self._last_reminder.get(spec, -math.inf)
        if now - last >= _REMINDER_SECONDS:
            self._last_reminder[spec] = now
            logger.warning("waiting for %s (%s): %s", spec, self._urls[spec].base, reason)
