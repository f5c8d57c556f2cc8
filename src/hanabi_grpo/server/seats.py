"""Served adapters as players: one private conversation per seat and game."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.errors import NonFiniteError, ServerError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.server.pacing import Turnstile
from hanabi_grpo.types import Reply


class Sampler(Protocol):
    """What a seat needs of the engine."""

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Sample:
        """Sample one reply."""

    @property
    def is_dead(self) -> bool:
        """True once it has failed for good; no reply comes any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The base model behind every reply: it samples, and turns texts into ids and back."""

    sampler: Sampler
    chat: ChatFormat
    max_model_len: int
    """Token budget of a conversation, the next reply included."""
    vocab_size: int = 1 << 31
    """Rows of its token embedding."""
    turnstile: Turnstile = field(default_factory=Turnstile)

    async def ask(
        self,
        conversation: Conversation,
        text: str,
        *,
        sampling: SamplingConfig,
        lora: Any | None,
        version: int | None,
    ) -> Reply:
        """Add a message and the reply to it to a conversation.

        Args:
            conversation: Grows by both.
            text: The message.
            sampling: Limits and temperature.
            lora: The engine's handle, None for the base model.
            version: What the reply is stamped with.

        Returns:
            The reply; `out_of_tokens` and without tokens when it might not fit the budget.

        Raises:
            NonFiniteError: A logprob is infinite or no number.
            ServerError: Ids that the model does not have, or logprobs that are not one for each of them.
        """
        added = conversation.ask(text)
        if len(conversation.ids) + sampling.max_tokens > self.max_model_len:
            return Reply(text="", prompt=text, out_of_tokens=True)
        sample = await self.sampler.generate(list(conversation.ids), sampling, lora)
        await self.turnstile.through()
        ids = list(sample.ids)
        conversation.answer(ids)
        self._check(sample, added)
        return Reply(
            text=self.chat.decode(ids),
            prompt=text,
            prompt_ids=tuple(added),
            reply_ids=sample.ids,
            logprobs=sample.logprobs,
            version=version,
        )

    def _check(self, sample: Sample, prompt_ids: list[int]) -> None:
        """Refuse a sample that nobody could train on, before anything is built on it."""
        if len(sample.logprobs) != len(sample.ids):
            raise ServerError(f"reply: {len(sample.logprobs)} logprobs for {len(sample.ids)} ids; each needs its own.")
        for place, value in enumerate(sample.logprobs):
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"reply: logprob {place} is {value}; a logprob must be finite. Do the adapter and the base model "
                    "hold finite weights?"
                )
        for token in (*prompt_ids, *sample.ids):
            if not 0 <= token < self.vocab_size:
                raise ServerError(
                    f"reply: id {token}; allowed are 0 to {self.vocab_size - 1}. Do tokenizer and model belong "
                    "together?"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlayer:
    """Lets one adapter, or the base model alone, sit in the seats of one rollout."""

    model: Model
    sampling: SamplingConfig
    lora: Any | None = None
    """The engine's handle; None: the base model."""
    version: int | None = None
    name: str = "served"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ServedSeat":
        """Return a fresh private conversation for one game."""
        return ServedSeat(self, task.environment.system(task.config, player))


@dataclass(frozen=True, slots=True)
class ServedSeat:
    """One player of one game."""

    player: ServedPlayer
    system: str
    conversations: list[Conversation] = field(default_factory=list)
    """The one of the episode; with memory of a turn none is kept."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask the model for an action; `out_of_tokens` when the reply might not fit the budget."""
        who, fresh = self.player, seen.memory == "turn"
        conversation = self.conversations[0] if self.conversations else Conversation(who.model.chat, self.system)
        if not fresh and not self.conversations:
            self.conversations.append(conversation)
        asked = who.model.ask(conversation, seen.message(), sampling=who.sampling, lora=who.lora, version=who.version)
        return replace(await asked, fresh=fresh)
