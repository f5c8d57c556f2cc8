"""Models behind OpenAI-compatible URLs as players: frozen, and called for a reply on each turn.

A call is retried after a transient failure; if all tries fail, its game is dropped and counted.
Consecutive failed calls to a URL, or an exhausted budget, end the whole request instead, so that no
game waits for a partner that is gone. Every call is a line of a transcript, even a cancelled one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.agents.memory import remembered_turns
from hanabi_grpo.agents.url_calls import MAX_FAILED_CALLS, Budget, CallLimits, UrlCalls
from hanabi_grpo.agents.url_client import CallFailedError, UrlSampling
from hanabi_grpo.agents.url_transcript import Transcript
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.texts import split_reply
from hanabi_grpo.errors import PartnerError, SettingsError
from hanabi_grpo.rollout.chat import Exchange
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import SeatRef, UrlRef, unknown_url
from hanabi_grpo.settings.values import PartnerUrl, split_partner_url
from hanabi_grpo.types import Reply, player_name


class UrlPartners:
    """HANABI_PARTNER_URLS of one server process: their budgets, and a record of every call.

    The session's trainer has one budget, all other clients (guests) share another, and guests never
    take more than half of the concurrent calls: they can neither end the trainer's run nor keep it
    waiting. A guest's call costs its tokens even if the guest hangs up. Use it from one event loop
    only.
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
        self._settings = settings
        calls = Transcript(transcript)
        self._calls = UrlCalls(
            self.by_spec,
            key=key,
            limits=CallLimits(
                seconds=settings.partner_timeout,
                variable="HANABI_PARTNER_TIMEOUT",
                at_once=settings.partner_requests,
                length_variable="MAX_COMPLETION_LENGTH",
            ),
            transcript=calls,
            totals=self._totals,
        )
        spent = calls.spent()
        self._own_budget = Budget(
            variable="HANABI_PARTNER_TOKENS",
            limit=settings.partner_tokens or None,
            spent=spent.total - spent.by_guests,
        )
        self._guest_budget = Budget(
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
            own: Whether the request is the session's trainer's.
            max_tokens: Longest reply, in tokens.

        Raises:
            SettingsError: This server does not know a URL, or the request may not use it.
        """
        urls = [ref for ref in refs if isinstance(ref, UrlRef)]
        for ref in urls:
            if str(ref) not in self.by_spec:
                raise unknown_url(ref, self.by_spec)
        if urls and not own:
            self._check_guest(urls[0], max_tokens)

    def _check_guest(self, ref: UrlRef, max_tokens: int) -> None:
        """Raise a SettingsError if only the session's trainer may use a URL like this."""
        limit = self._guest_budget.limit
        if limit is None:
            return
        if limit == 0:
            raise SettingsError(
                f"{ref}: HANABI_PARTNER_GUEST_TOKENS=0, so only the trainer of this server's "
                "session may use it. Train with it, or start the server with a positive "
                "HANABI_PARTNER_GUEST_TOKENS: the budget of tokens that all other clients share."
            )
        longest = self._settings.max_completion_length
        if max_tokens > longest:
            raise SettingsError(
                f"{ref}: MAX_COMPLETION_LENGTH={max_tokens}, but on this server only the "
                f"session's trainer may ask it for more than {longest} tokens. Set {longest} or "
                f"less, or start the server with MAX_COMPLETION_LENGTH={max_tokens} too."
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
        """Return the models that a URL lists, without retries.

        Raises:
            PartnerError: The URL does not answer, or does not list its models.
        """
        try:
            return await self._calls.client(spec).list_models()
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
            messages: The conversation in the format of OpenAI's API.
            where: Seat, task and game, for the transcript.

        Raises:
            PartnerDownError: The budget is exhausted, or `MAX_FAILED_CALLS` consecutive calls
                failed, including this one.
            PartnerError: There is no usable reply after all tries.
        """
        budget = self._own_budget if player.own else self._guest_budget
        outcome = await self._calls.ask(
            player.name,
            messages,
            player.sampling,
            budget=budget,
            where=where,
            by_guest=not player.own,
        )
        if not outcome.reason:
            player.failed_calls = 0
            return outcome.reply
        player.failed_calls += 1
        failure = self._calls.describe(player.name, outcome)
        if player.failed_calls < MAX_FAILED_CALLS:
            raise PartnerError(failure)
        raise self._calls.down(failure, player.failed_calls)

    def _totals(self) -> dict[str, int]:
        return {"spent": self.spent, "guests_spent": self._guest_budget.spent}


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
    past: list[Exchange] = field(default_factory=list)
    """Past messages, and the reply to each without its thoughts, as chat templates render earlier
    turns. Tool results are sent as user messages, since these services match tool messages to calls
    that they parsed themselves.
    """

    async def reply(self, seen: Observation) -> Reply:
        """Ask the URL; raises as `UrlPartners.ask`."""
        message = seen.message()
        messages = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        remembered = remembered_turns(self.past, seen.window, is_continued=seen.follows_call)
        for past in remembered:
            messages.append({"role": "user", "content": past.message})
            messages.append({"role": "assistant", "content": past.reply})
        messages.append({"role": "user", "content": message})
        reply = await self.player.partners.ask(self.player, messages, self.where)
        _, spoken = split_reply(reply)
        self.past.append(Exchange(message, spoken, seen.follows_call))
        return Reply(text=reply, prompt=message)
