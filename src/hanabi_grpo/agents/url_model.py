"""Models behind OpenAI-compatible URLs as players: frozen, and called for a reply on each turn.

A call is retried after a transient failure; when all its tries failed, its game is dropped and
counted. A URL that fails call after call, and an exhausted budget, end the whole request instead:
no game waits for a partner that is gone. Every call is a line of a transcript.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.agents.memory import remembered_turns
from hanabi_grpo.agents.url_client import CallFailedError, UrlClient, UrlSampling, Usage
from hanabi_grpo.agents.url_transcript import Transcript
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.texts import split_reply
from hanabi_grpo.errors import PartnerDownError, PartnerError, SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import SeatRef, UrlRef, unknown_url
from hanabi_grpo.settings.values import PartnerUrl, split_partner_url
from hanabi_grpo.types import Reply, player_name

logger = logging.getLogger(__name__)

PAUSES = (2.0, 8.0, 32.0)
"""Seconds before the second try and the later ones.

A Retry-After header takes precedence, up to the timeout of a call.
"""
MAX_FAILED_CALLS = 3
"""Number of consecutive failed calls that end a request."""
_REMINDER_SECONDS = 60.0
"""Least time between two log lines about the same URL."""
_DIGEST_LENGTH = 16
"""Hexadecimal digits of the hash of a call's messages in the transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Outcome of one call after all its tries."""

    reply: str = ""
    reason: str = ""
    """Why the call failed; empty when it was answered."""
    usage: Usage = field(default_factory=Usage)
    tries: int


@dataclass(slots=True, kw_only=True)
class _Budget:
    """Tokens that some clients may have all URLs count together."""

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
            f"{self.variable}={self.limit}: the URLs of HANABI_PARTNER_URLS have counted "
            f"{self.spent} tokens, so they are asked no more. Restart the server, which "
            f"counts from 0, with what may be spent from here on in {self.variable}, then give the "
            "same command, in training with RESUME=latest."
        )


class UrlPartners:
    """HANABI_PARTNER_URLS of one server process: their budgets, and a record of every call.

    The session's trainer and all others (guests) have a budget each, and guests never take more
    than half of the calls at the same time: they cannot end the trainer's run, nor keep it waiting.
    To be used from one event loop.
    """

    def __init__(self, settings: Settings, transcript: Path | None = None) -> None:
        """Prepare the calls; nothing is sent yet.

        Args:
            settings: Names the URLs, their key, and the limits (HANABI_PARTNER_…).
            transcript: File in which calls are recorded; None: they are not recorded.
        """
        self.by_spec: dict[str, PartnerUrl] = {}
        """E.g. {"url:big": PartnerUrl("big", "http://localhost:8001/v1", "Qwen/Qwen3-8B")}."""
        for entry in settings.partner_urls:
            url = split_partner_url(entry)
            self.by_spec[str(UrlRef(name=url.name))] = url
        key = settings.partner_key.get_secret_value() if settings.partner_key else ""
        self._clients: dict[str, UrlClient] = {}
        for spec, url in self.by_spec.items():
            self._clients[spec] = UrlClient(url, key=key, timeout=settings.partner_timeout)
        self._settings = settings
        self._transcript = Transcript(transcript)
        self._free_calls = asyncio.Semaphore(settings.partner_requests)
        self._free_guest_calls = asyncio.Semaphore(max(1, settings.partner_requests // 2))
        self._last_reminder: dict[str, float] = {}
        spent = self._transcript.spent()
        self._own_budget = _Budget(
            variable="HANABI_PARTNER_TOKENS",
            limit=settings.partner_tokens or None,
            spent=spent.total - spent.by_guests,
        )
        self._guest_budget = _Budget(
            variable="HANABI_PARTNER_GUEST_TOKENS",
            limit=settings.partner_guest_tokens,
            spent=spent.by_guests,
        )

    @property
    def spent(self) -> int:
        """Tokens of all prompts and replies so far, as the URLs counted them."""
        return self._own_budget.spent + self._guest_budget.spent

    @property
    def described(self) -> dict[str, str]:
        """URL and model of each spec, e.g. {"url:big": "http://localhost:8001/v1#Qwen/Qwen3-8B"}."""
        descriptions = {}
        for spec, url in self.by_spec.items():
            descriptions[spec] = f"{url.base}#{url.model}"
        return descriptions

    def check(self, refs: Iterable[SeatRef], *, own: bool, max_tokens: int) -> None:
        """Check the seats of a request.

        Args:
            refs: The policies in its seats.
            own: Whether it is the session's trainer's.
            max_tokens: Longest reply, in tokens.

        Raises:
            SettingsError: This server does not know a URL, or the request may not seat it.
        """
        urls = [ref for ref in refs if isinstance(ref, UrlRef)]
        for ref in urls:
            if str(ref) not in self.by_spec:
                raise unknown_url(ref, self.by_spec)
        if urls and not own:
            self._check_guest(urls[0], max_tokens)

    def _check_guest(self, ref: UrlRef, max_tokens: int) -> None:
        """Raise a SettingsError when only the session's trainer may seat a URL like this."""
        limit = self._guest_budget.limit
        if limit is None:
            return
        if limit == 0:
            raise SettingsError(
                f"{ref}: HANABI_PARTNER_GUEST_TOKENS=0, so only the trainer of this server's "
                "session may seat it. Train with it, or start the server with the tokens that all "
                "others may spend together."
            )
        longest = self._settings.max_completion_length
        if max_tokens > longest:
            raise SettingsError(
                f"{ref}: MAX_COMPLETION_LENGTH={max_tokens}, but this server lets only its "
                f"session's trainer ask it for more than {longest} tokens. Ask for less, or start "
                f"the server with MAX_COMPLETION_LENGTH={max_tokens} too."
            )

    def player(
        self, ref: UrlRef, *, max_tokens: int, temperature: float, own: bool = False
    ) -> "UrlPlayer":
        """Return the player for the seats of one request.

        Args:
            ref: A URL that `check` knows.
            max_tokens: Longest reply, in tokens.
            temperature: Sampling temperature; 0 is greedy.
            own: Whether the request is the session's trainer's.
        """
        sampling = UrlSampling(max_tokens=max_tokens, temperature=temperature)
        url = self.by_spec[str(ref)]
        return UrlPlayer(partners=self, url=url, sampling=sampling, own=own)

    async def list_models(self, spec: str) -> tuple[str, ...]:
        """Return the models that a URL lists, asked once.

        Raises:
            PartnerError: The URL does not answer, or lists no models.
        """
        try:
            return await self._clients[spec].list_models()
        except CallFailedError as error:
            raise PartnerError(f"{self.by_spec[spec].base}: {error}") from error

    async def ask(
        self,
        player: "UrlPlayer",
        messages: list[dict[str, str]],
        where: Mapping[str, Any],
    ) -> str:
        """Return the reply to a conversation, never an empty one.

        Args:
            player: The player that is called.
            messages: The conversation as OpenAI's API has it.
            where: Seat, task and game, for the transcript.

        Raises:
            PartnerDownError: The budget is exhausted, or `MAX_FAILED_CALLS` consecutive calls
                failed, including this one.
            PartnerError: There is no usable reply after all tries.
        """
        async with contextlib.AsyncExitStack() as calls:
            if not player.own:
                await calls.enter_async_context(self._free_guest_calls)
            await calls.enter_async_context(self._free_calls)
            start = time.monotonic()
            outcome = await self._call(player, messages)
            seconds = time.monotonic() - start
        self._record(player.url, messages, where, outcome, seconds)
        if not outcome.reason:
            player.failed_calls = 0
            return outcome.reply
        player.failed_calls += 1
        url = player.url
        failure = f"{player.name} ({url.base}, {url.model}): {outcome.reason}"
        if player.failed_calls < MAX_FAILED_CALLS:
            raise PartnerError(failure)
        raise PartnerDownError(
            f"{failure} {player.failed_calls} calls in a row failed like this, so it is asked no "
            f"more. Every call is in {self._transcript.path}. When it answers again, give the same "
            "command, in training with RESUME=latest."
        )

    async def _call(self, player: "UrlPlayer", messages: list[dict[str, str]]) -> _Outcome:
        """Make one call, and retry it after each transient failure."""
        max_tries = len(PAUSES) + 1
        for tries in range(1, max_tries + 1):
            self._budget(player).check()
            try:
                reply, usage = await self._try_once(player, messages)
                return _Outcome(reply=reply, usage=usage, tries=tries)
            except CallFailedError as error:
                if not error.can_retry or tries == max_tries:
                    return _Outcome(reason=str(error), tries=tries)
                pause = error.retry_after
                if pause is None:
                    pause = PAUSES[tries - 1]
                pause = min(pause, self._settings.partner_timeout)
                self._remind(
                    player.url, f"{error} Try {tries} of {max_tries}; the next in {pause:g} s."
                )
                await asyncio.sleep(pause)
        raise AssertionError("the last try returns")

    async def _try_once(
        self, player: "UrlPlayer", messages: list[dict[str, str]]
    ) -> tuple[str, Usage]:
        """Return a reply and its usage, which counts as spent even if the reply is unusable."""
        limit = self._settings.partner_timeout
        still_waiting = (
            f"no answer since {_REMINDER_SECONDS:g} s; a call has {limit:g} s "
            "(HANABI_PARTNER_TIMEOUT)."
        )
        loop = asyncio.get_running_loop()
        reminder = loop.call_later(_REMINDER_SECONDS, self._remind, player.url, still_waiting)
        try:
            completion = await self._clients[player.name].complete(messages, player.sampling)
        finally:
            reminder.cancel()
        usage = completion.usage or Usage()
        budget = self._budget(player)
        budget.spent += usage.prompt_tokens + usage.completion_tokens
        if budget.limit is not None and not usage.prompt_tokens:
            raise CallFailedError(
                f"its answers have no usage, so {budget.variable} cannot be kept.",
                can_retry=False,
            )
        if not completion.text.strip():
            raise CallFailedError(
                "the reply is empty (does it think for longer than MAX_COMPLETION_LENGTH?)."
            )
        return completion.text, usage

    def _budget(self, player: "UrlPlayer") -> _Budget:
        return self._own_budget if player.own else self._guest_budget

    def _record(
        self,
        url: PartnerUrl,
        messages: list[dict[str, str]],
        where: Mapping[str, Any],
        outcome: _Outcome,
        seconds: float,
    ) -> None:
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
                "spent": self.spent,
                "guests_spent": self._guest_budget.spent,
            }
        )

    def _remind(self, url: PartnerUrl, reason: str) -> None:
        """Log why a URL keeps games waiting, once a minute."""
        now = time.monotonic()
        last = self._last_reminder.get(url.name, -math.inf)
        if now - last >= _REMINDER_SECONDS:
            self._last_reminder[url.name] = now
            logger.warning("waiting for url:%s (%s): %s", url.name, url.base, reason)


@dataclass(slots=True, kw_only=True)
class UrlPlayer:
    """The model behind a URL in the seats of one request."""

    partners: UrlPartners
    url: PartnerUrl
    sampling: UrlSampling
    own: bool = False
    """Whether the session's trainer asked for its games."""
    failed_calls: int = 0
    """Number of calls that failed since the last answer."""

    @property
    def name(self) -> str:
        """The policy spec of its seats, e.g. "url:big"."""
        return f"url:{self.url.name}"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "UrlSeat":
        """Return a seat with an empty conversation, see `rollout.loop.Player.seat`."""
        where = {
            "seat": player_name(player),
            "task": f"{task.environment.name} {task.split}/{task.seed}",
            "game": game,
        }
        system = task.environment.system_message(task.config, player)
        return UrlSeat(player=self, where=where, system=system)


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSeat:
    """The model behind a URL as one player of one game."""

    player: UrlPlayer
    where: Mapping[str, Any]
    """Seat, task and game, for the transcript."""
    system: str
    past: list[tuple[str, str]] = field(default_factory=list)
    """Past messages, and the reply to each without its thoughts, as chat templates render earlier
    turns.
    """

    async def reply(self, seen: Observation) -> Reply:
        """Ask the URL; raises as `UrlPartners.ask`."""
        message = seen.message()
        messages = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        for past_message, past_reply in remembered_turns(self.past, seen.window):
            messages.append({"role": "user", "content": past_message})
            messages.append({"role": "assistant", "content": past_reply})
        messages.append({"role": "user", "content": message})
        reply = await self.player.partners.ask(self.player, messages, self.where)
        _, spoken = split_reply(reply)
        self.past.append((message, spoken))
        return Reply(text=reply, prompt=message)
