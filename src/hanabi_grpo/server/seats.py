"""From the words of a request to who plays: adapters to hold, a player for each seat, a
conversation for each game.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hanabi_grpo.client.url_partners import UrlPartners
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.errors import NonFiniteError, ServerError, VersionError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.rollout.loop import Player, make_script
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, Sampler, SamplingConfig
from hanabi_grpo.server.adapter_loader import HeldAdapter
from hanabi_grpo.server.pacing import take_turn
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import is_scripted, is_url, seat_adapter
from hanabi_grpo.types import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The base model behind every reply: it samples, and turns texts into ids and back."""

    sampler: Sampler
    chat: ChatFormat
    max_model_len: int
    """Token budget of a conversation, the next reply included."""
    vocab_size: int = 1 << 31
    """Rows of its token embedding."""
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)
    """See `pacing.take_turn`."""
    partners: UrlPartners = field(default_factory=lambda: UrlPartners(Settings()))
    """Other models that may take a seat beside it."""


@dataclass(slots=True, kw_only=True)
class PromptTokens:
    """Tokens of the prompts that one request gave the engine; also of games that failed."""

    given: int = 0
    cached: int = 0
    """Those that were in its prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlayer:
    """Lets one adapter, or the base model alone, sit in the seats of one rollout."""

    model: Model
    sampling: SamplingConfig
    prompts: PromptTokens = field(default_factory=PromptTokens)
    """Counts what it asks."""
    lora: AdapterHandle | None = None
    """The engine's handle; None: the base model."""
    version: int | None = None
    """What its replies are stamped with."""
    name: str = "served"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ServedSeat":
        """Return a fresh private conversation for one game."""
        window, system = task.config.window, task.environment.system(task.config, player)
        conversation = Conversation(self.model.chat, system, window)
        # Games of a group, and single games of tasks in a row, go round the copies of the model.
        return ServedSeat(self, conversation, fresh=window is not None, game=task.seed + game)

    async def ask(self, conversation: Conversation, text: str, game: int | None = None) -> Reply:
        """Add a message and the reply to it, `out_of_tokens` when it might not fit the budget, to a
        conversation.

        A NonFiniteError or ServerError says that nobody could train on the sample.
        """
        model = self.model
        added = conversation.ask(text)
        if len(conversation.ids) + self.sampling.max_tokens > model.max_model_len:
            return Reply(text="", prompt=text, out_of_tokens=True)
        sample = await model.sampler.generate(
            list(conversation.ids), self.sampling, self.lora, game
        )
        self.prompts.given += len(conversation.ids)
        self.prompts.cached += sample.num_cached_tokens
        await take_turn(model.turnstile)
        conversation.answer(list(sample.ids))
        _check(sample, added, model.vocab_size)
        return Reply(
            text=model.chat.decode(list(sample.ids)),
            prompt=text,
            prompt_ids=tuple(added),
            reply_ids=sample.ids,
            logprobs=sample.logprobs,
            version=self.version,
        )


def _check(sample: Sample, prompt_ids: list[int], vocab_size: int) -> None:
    if len(sample.logprobs) != len(sample.ids):
        raise ServerError(
            f"reply: {len(sample.logprobs)} logprobs for {len(sample.ids)} ids; each needs its own."
        )
    for place, value in enumerate(sample.logprobs):
        if not math.isfinite(value):
            raise NonFiniteError(
                f"reply: logprob {place} is {value}; a logprob must be finite. Do the adapter and "
                "the base model hold "
                "finite weights?"
            )
    for token in (*prompt_ids, *sample.ids):
        if not 0 <= token < vocab_size:
            raise ServerError(
                f"reply: id {token}; allowed are 0 to {vocab_size - 1}. Do tokenizer and model "
                "belong together?"
            )


@dataclass(frozen=True, slots=True)
class ServedSeat:
    """One player of one game."""

    player: ServedPlayer
    conversation: Conversation
    fresh: bool
    """Whether each turn is a sequence of its own, see `EnvConfig.window`."""
    game: int
    """Decides which copy of the model is asked."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask the model for an action."""
        return replace(
            await self.player.ask(self.conversation, seen.message(), self.game), fresh=self.fresh
        )


def wanted_adapters(tasks: Sequence[RequestedTask]) -> dict[str, int]:
    """Return every adapter that a request needs and its version."""
    named = [
        seat_adapter(seat)
        for seats in dict.fromkeys(task.seats for task in tasks)
        for seat in seats
    ]
    wanted: dict[str, int] = {}
    for name, version in (one for one in named if one is not None):
        if wanted.setdefault(name, version) != version:
            raise VersionError(
                f"{name} is asked for as @{wanted[name]} and @{version}; one request, one version."
            )
    return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of one request; a script or adapter that sits at several of them is made once."""

    model: Model
    sampling: SamplingConfig
    leased: Mapping[str, HeldAdapter]
    """Adapter name to what is held of it."""
    prompts: PromptTokens = field(default_factory=PromptTokens)
    made: dict[tuple[Setup[Any], str], Player] = field(default_factory=dict)

    def seat(self, task: RequestedTask) -> list[Player]:
        """Return who a task names, per seat."""
        setup, seats = task.task.setup, task.seats
        for seat in seats:
            if (setup, seat) not in self.made:
                self.made[setup, seat] = self._player(setup, seat)
        return [self.made[setup, seat] for seat in seats]

    def _player(self, setup: Setup[Any], seat: str) -> Player:
        if is_url(seat):
            limit, heat = self.sampling.max_tokens, self.sampling.temperature
            return self.model.partners.player(seat, max_tokens=limit, temperature=heat)
        return make_script(setup, seat) if is_scripted(seat) else self.served(seat)

    def served(self, seat: str) -> ServedPlayer:
        """Return the player that samples in a seat."""
        named = seat_adapter(seat)
        held = self.leased[named[0]] if named else None
        lora, version = (held.lora, held.version) if held else (None, None)
        return ServedPlayer(
            model=self.model,
            sampling=self.sampling,
            prompts=self.prompts,
            lora=lora,
            version=version,
        )
