"""Calls to the models of HANABI_PARTNER_URLS: retried, limited, counted and recorded.

Partners (`url_model`) and the judge (`judge`) make their calls here, each with its own budgets,
limits and transcript.
"""

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """Limit on the total tokens of some calls, as the URLs count them."""

    variable: str
    """The setting that limits it."""
    limit: int | None
    """None: no limit."""
    spent: int
    """Tokens of prompts and replies, as the URLs counted them."""

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
    ) -> Outcome:
        """Make one call, and retry it after each transient failure.

        Args:
            spec: The URL, e.g. "url:big".
            messages: The conversation in the format of OpenAI's API.
            sampling: Sampling parameters of the reply.
            budget: The budget that the tokens are taken from.
            where: Seat, task and game, for the transcript.

        Returns:
            A reply that is not empty, or why there is none.

        Raises:
            PartnerDownError: The budget is exhausted.
        """
        async with self._free_calls:
            start = time.monotonic()
            outcome = await self._try_several_times(spec, messages, sampling, budget)
            seconds = time.monotonic() - start
        self._record(spec, messages, where, outcome, seconds)
        return outcome

    async def _try_several_times(
        self, spec: str, messages: list[dict[str, str]], sampling: UrlSampling, budget: Budget
    ) -> Outcome:
        max_tries = len(PAUSES) + 1
        for tries in range(1, max_tries + 1):
            budget.check()
            try:
                reply, usage = await self._try_once(spec, messages, sampling, budget)
                return Outcome(reply=reply, usage=usage, tries=tries)
            except CallFailedError as error:
                if not error.can_retry or tries == max_tries:
                    return Outcome(reason=str(error), tries=tries)
                pause = error.retry_after
                if pause is None:
                    pause = PAUSES[tries - 1]
                pause = min(pause, self._limits.seconds)
                self._remind(spec, f"{error} Try {tries} of {max_tries}; the next in {pause:g} s.")
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns")

    async def _try_once(
        self, spec: str, messages: list[dict[str, str]], sampling: UrlSampling, budget: Budget
    ) -> tuple[str, Usage]:
        """Return a reply and its usage, which counts as spent even if the reply is unusable."""
        limits = self._limits
        still_waiting = (
            f"no response for {_REMINDER_SECONDS:g} s; a call times out after {limits.seconds:g} s "
            f"({limits.variable})."
        )
        loop = asyncio.get_running_loop()
        reminder = loop.call_later(_REMINDER_SECONDS, self._remind, spec, still_waiting)
        try:
            completion = await self._clients[spec].complete(messages, sampling)
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

    def _record(
        self,
        spec: str,
        messages: list[dict[str, str]],
        where: Mapping[str, Any],
        outcome: Outcome,
        seconds: float,
    ) -> None:
        url = self._urls[spec]
        messages_digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        self._transcript.append(
            {
                "time": round(time.time(), 3),
                "partner": url.name,
                "model": url.model,
                **where,
                "messages": messages_digest[:_DIGEST_LENGTH],
                "prompt": messages[-1]["content"],
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
