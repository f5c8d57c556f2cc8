"""Seats that OpenAI-compatible URLs answer: other models, frozen, asked by the rollout server for a
reply each turn.

A call whose failure may pass is made again; when all its tries failed, its game is dropped and
counted. A URL that fails call after call, and a used-up budget, end the whole request instead:
nobody waits for a partner that is gone. Every call is a line of a transcript, from which a server
process that takes the place of a dead one counts on."""

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
from typing import Annotated, Any, TypeVar

import httpx
from msgspec import Meta, Struct

from hanabi_grpo.client.calls import MAX_ANSWER, retry_after
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.texts import split_reply
from hanabi_grpo.errors import PartnerDownError, PartnerError
from hanabi_grpo.rollout.chat import remembered
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.runs.run_folder import append_jsonl
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import is_url, unknown_url
from hanabi_grpo.settings.values import PartnerUrl, is_loopback, split_partner_url
from hanabi_grpo.types import Reply, player_name

logger = logging.getLogger(__name__)
PAUSES = (2.0, 8.0, 32.0)
"""Seconds before the second try and the later ones; a Retry-After is waited for instead, up to a
call's own limit.
"""
IN_VAIN = 3
"""Calls failed in a row, none answered in between, that end a request."""
MAX_TRANSCRIPT = 64 << 20
"""Bytes after which a transcript is moved aside to NAME.old.jsonl, and the one before it is
gone.
"""
_SAY_SECONDS = 60.0
_SHOWN = 300
_HINTS = {
    401: " Set HANABI_PARTNER_KEY in the server's terminal.",
    403: " Set HANABI_PARTNER_KEY in the server's terminal.",
    404: " Does the URL end as in http://localhost:8001/v1, and is the model named as there?",
}
_Count = Annotated[int, Meta(ge=0)]
_Kind = TypeVar("_Kind", bound=Struct)


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class _Usage(Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0


class _Completion(Struct):
    choices: Annotated[tuple[_Choice, ...], Meta(min_length=1)]
    usage: _Usage | None = None


class _Model(Struct):
    id: str


class _Models(Struct):
    data: tuple[_Model, ...]


class _FailedError(Exception):
    """One try failed; `after` are seconds that the server asks for, `again` whether another try may
    help.
    """

    def __init__(self, reason: str, *, again: bool = True, after: float | None = None) -> None:
        super().__init__(reason)
        self.again, self.after = again, after


class UrlPartners:
    """HANABI_PARTNER_URLS of one server process: what they may cost together, and the record of
    every call.

    Used from one event loop. `transcript` is where calls are recorded; None: nowhere.
    """

    def __init__(self, settings: Settings, transcript: Path | None = None) -> None:
        self.by_word = {
            f"url:{one.name}": one for one in map(split_partner_url, settings.partner_urls)
        }
        self._settings, self._transcript = settings, transcript
        self._key = settings.partner_key.get_secret_value() if settings.partner_key else ""
        self._places = asyncio.Semaphore(settings.partner_requests)
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._said: dict[str, float] = {}
        self.spent = _spent(transcript)
        """Tokens, prompts and replies, as the URLs counted them."""

    @property
    def described(self) -> dict[str, str]:
        """What each word means, e.g. {"url:big": "http://localhost:8001/v1#Qwen/Qwen3-8B"}."""
        return {word: f"{one.base}#{one.model}" for word, one in self.by_word.items()}

    def check(self, seats: Iterable[str]) -> None:
        """Refuse, by a SettingsError, seats of URLs that this server does not know."""
        for seat in filter(is_url, seats):
            if seat not in self.by_word:
                raise unknown_url(seat, self.by_word)

    def player(self, word: str, *, max_tokens: int, temperature: float) -> "UrlPlayer":
        """Return who answers in the seats of one request."""
        sampling = {"max_tokens": max_tokens, "temperature": temperature}
        return UrlPlayer(partners=self, partner=self.by_word[word], sampling=sampling)

    async def look(self, word: str) -> tuple[str, ...]:
        """Return the models that a URL lists, asked once; PartnerError: it does not answer, or
        lists none.
        """
        partner = self.by_word[word]
        try:
            return tuple(
                one.id
                for one in self._read(
                    _Models, await self._send(partner, "GET", "/models", None)
                ).data
            )
        except _FailedError as error:
            raise PartnerError(f"{partner.base}: {error}") from error

    async def ask(
        self, player: "UrlPlayer", messages: list[dict[str, str]], where: Mapping[str, Any]
    ) -> str:
        """Return a reply, never an empty one; `where` is the seat and its game, for the transcript.

        Raises: PartnerDownError: The budget is used up, or this was the last of `IN_VAIN` calls in
            a row. PartnerError: No usable reply after all tries.
        """
        partner, tries, start, limit = player.partner, 0, 0.0, self._settings.partner_tokens
        body = {"model": partner.model, "messages": messages, **player.sampling}
        reply, usage, reason = "", _Usage(), ""
        async with self._places:
            start = time.monotonic()
            for pause in (*PAUSES, None):
                if 0 < limit <= self.spent:
                    raise PartnerDownError(
                        f"HANABI_PARTNER_TOKENS={limit}: the URLs of HANABI_PARTNER_URLS have "
                        f"counted {self.spent} "
                        "tokens, so they are asked no more. Start the server anew, which counts "
                        "from 0, with what may "
                        "be spent from here on (0: no limit), then give the same command, in "
                        "training with "
                        "RESUME=latest."
                    )
                tries += 1
                try:
                    reply, usage = await self._complete(partner, body)
                except _FailedError as error:
                    reason = str(error)
                    if not error.again or pause is None:
                        break
                    wait = min(
                        pause if error.after is None else error.after,
                        self._settings.partner_timeout,
                    )
                    self._say(
                        partner,
                        f"{reason} Try {tries} of {len(PAUSES) + 1}; the next in {wait:g} s.",
                    )
                    await asyncio.sleep(wait)
                else:
                    reason = ""
                    break
        self._record(
            {
                **{
                    "time": round(time.time(), 3),
                    "partner": partner.name,
                    "model": partner.model,
                    **where,
                },
                "messages": hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16],
                **{"prompt": messages[-1]["content"], "reply": reply, "error": reason},
                **{
                    "prompt_tokens": usage.prompt_tokens,
                    "reply_tokens": usage.completion_tokens,
                    "tries": tries,
                },
                **{"seconds": round(time.monotonic() - start, 3), "spent": self.spent},
            }
        )
        player.in_vain = player.in_vain + 1 if reason else 0
        if not reason:
            return reply
        said = f"url:{partner.name} ({partner.base}, {partner.model}): {reason}"
        if player.in_vain < IN_VAIN:
            raise PartnerError(said)
        raise PartnerDownError(
            f"{said} {player.in_vain} calls in a row failed like this, so it is asked no more. "
            "Every call is in "
            f"{self._transcript}. When it answers again, give the same command, in training with "
            "RESUME=latest."
        )

    async def _complete(self, partner: PartnerUrl, body: Mapping[str, Any]) -> tuple[str, _Usage]:
        answer = self._read(
            _Completion, await self._send(partner, "POST", "/chat/completions", body)
        )
        usage = answer.usage or _Usage()
        self.spent += usage.prompt_tokens + usage.completion_tokens
        if self._settings.partner_tokens and not usage.prompt_tokens:
            raise _FailedError(
                "its answers have no usage, so HANABI_PARTNER_TOKENS cannot be kept.", again=False
            )
        if not (text := answer.choices[0].message.content or "").strip():
            raise _FailedError(
                "the reply is empty (does it think for longer than MAX_COMPLETION_LENGTH?)."
            )
        return text, usage

    def _read(self, kind: type[_Kind], content: bytes) -> _Kind:
        try:
            return read_struct(kind, content)
        except ValueError as error:
            raise _FailedError(
                f"the answer does not fit ({error}): {self._quoted(content)}."
            ) from None

    async def _send(self, partner: PartnerUrl, method: str, path: str, body: Any) -> bytes:
        limit, content, client = self._settings.partner_timeout, b"", self._client(partner)
        headers = {
            "accept-encoding": "identity",
            **({"authorization": f"Bearer {self._key}"} if self._key else {}),
        }
        waits = (
            f"no answer since {_SAY_SECONDS:g} s; a call has {limit:g} s (HANABI_PARTNER_TIMEOUT)."
        )
        told = asyncio.get_running_loop().call_later(_SAY_SECONDS, self._say, partner, waits)
        try:
            async with (
                asyncio.timeout(limit),
                client.stream(method, partner.base + path, json=body, headers=headers) as response,
            ):
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > MAX_ANSWER:
                        raise _FailedError(f"the answer has more than {MAX_ANSWER} bytes.")
        except TimeoutError:
            raise _FailedError(f"no answer in {limit:g} s (HANABI_PARTNER_TIMEOUT).") from None
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise _FailedError(
                f"cannot be asked: {error}. Check HANABI_PARTNER_URLS.", again=False
            ) from error
        except httpx.HTTPError as error:
            raise _FailedError(f"not reached ({type(error).__name__}: {error}).") from error
        finally:
            told.cancel()
        if (status := response.status_code) == 200:
            return content
        reason = f"it answered {status}: {self._quoted(content)}.{_HINTS.get(status, '')}"
        again = status in (408, 409, 425, 429) or status >= 500
        raise _FailedError(reason, again=again, after=retry_after(response))

    def _client(self, partner: PartnerUrl) -> httpx.AsyncClient:
        # A proxy variable is meant for the internet, not for this machine.
        proxied = not is_loopback(httpx.URL(partner.base).host)
        if proxied not in self._clients:
            # No connection is kept: one that idled while a trainer learned may be dead.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._clients[proxied] = httpx.AsyncClient(
                timeout=None, limits=limits, trust_env=proxied
            )
        return self._clients[proxied]

    def _quoted(self, content: bytes) -> str:
        text = content[: 4 * _SHOWN].decode("utf-8", "replace")
        return repr((text.replace(self._key, "********") if self._key else text)[:_SHOWN])

    def _say(self, partner: PartnerUrl, what: str) -> None:
        if time.monotonic() - self._said.get(partner.name, -math.inf) >= _SAY_SECONDS:
            self._said[partner.name] = time.monotonic()
            logger.warning("waiting for url:%s (%s): %s", partner.name, partner.base, what)

    def _record(self, row: Mapping[str, Any]) -> None:
        if (path := self._transcript) is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > MAX_TRANSCRIPT:
                path.replace(path.with_suffix(".old.jsonl"))
            append_jsonl(path, row)
        except OSError as error:
            # A record that is lost ends no game.
            logger.warning("%s cannot be written (%s)", path, error.strerror)


@dataclass(slots=True, kw_only=True)
class UrlPlayer:
    """Lets the model behind a URL sit in the seats of one request."""

    partners: UrlPartners
    partner: PartnerUrl
    sampling: Mapping[str, Any]
    in_vain: int = 0
    """Calls that failed since one was answered."""

    @property
    def name(self) -> str:
        """The seat's word."""
        return f"url:{self.partner.name}"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "UrlSeat":
        """Return a private conversation for one game."""
        where = {
            "seat": player_name(player),
            "task": f"{task.environment.name} {task.split}/{task.seed}",
            "game": game,
        }
        return UrlSeat(
            player=self, where=where, system=task.environment.system(task.config, player)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSeat:
    """One player of one game."""

    player: UrlPlayer
    where: Mapping[str, Any]
    system: str
    said: list[tuple[str, str]] = field(default_factory=list)
    """What it was shown and what it said to that, without its thoughts, as chat templates render
    earlier turns.
    """

    async def reply(self, seen: Observation) -> Reply:
        """Ask the URL; errors as `UrlPartners.ask`."""
        text = seen.message()
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answered in remembered(self.said, seen.window):
            messages += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answered},
            ]
        reply = await self.player.partners.ask(
            self.player, [*messages, {"role": "user", "content": text}], self.where
        )
        self.said.append((text, split_reply(reply)[1]))
        return Reply(text=reply, prompt=text)


def _spent(transcript: Path | None) -> int:
    """Return what the last whole line of a transcript says was spent; 0 without one."""
    for path in (transcript, transcript.with_suffix(".old.jsonl")) if transcript else ():
        with contextlib.suppress(OSError):
            for line in reversed(path.read_bytes().splitlines()):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    return int(json.loads(line)["spent"])
    return 0
