"""Served adapters as players: one private conversation per seat and game."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.errors import NonFiniteError, ServerError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.types import Reply, player_name


class Sampler(Protocol):
    """What a seat needs of the engine."""

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Sample:
        """Sample one reply."""

    @property
    def is_dead(self) -> bool:
        """True once it has failed for good; no reply comes any more."""


class ServedPolicy:
    """Lets the adapters that are served now sit in the seats of one rollout."""

    name = "served"

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatFormat,
        *,
        loras: Mapping[str, tuple[Any, int]],
        sampling: SamplingConfig,
        max_model_len: int,
        vocab_size: int | None = None,
    ) -> None:
        """Bind a rollout to its adapters.

        Args:
            sampler: The engine.
            chat: How conversations become ids.
            loras: Per player name the engine's handle and the version; a player that is absent uses the base model.
            sampling: Limits and temperature of each reply.
            max_model_len: Token budget of a conversation, the next reply included.
            vocab_size: See `check_reply`.
        """
        self.sampler, self.chat, self.loras, self.sampling = sampler, chat, loras, sampling
        self.max_model_len, self.vocab_size = max_model_len, vocab_size

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ServedSeat":
        """Return a fresh private conversation for one game."""
        return ServedSeat(self, player, task.environment.system(task.config, player))


class ServedSeat:
    """One player of one game."""

    def __init__(self, policy: ServedPolicy, player: int, system: str) -> None:
        """Start the conversation; `system` is its first message unless empty."""
        self._policy = policy
        held: tuple[Any, int | None] = policy.loras.get(player_name(player), (None, None))
        self._lora, self._version = held
        self._conversation = Conversation(policy.chat, system)

    async def reply(self, seen: Observation) -> Reply:
        """Ask the model for an action; `out_of_tokens` when the reply might not fit the budget."""
        policy = self._policy
        return await ask_model(
            policy.sampler,
            policy.chat,
            self._conversation,
            seen.message(),
            sampling=policy.sampling,
            lora=self._lora,
            version=self._version,
            max_model_len=policy.max_model_len,
            vocab_size=policy.vocab_size,
        )


async def ask_model(
    sampler: Sampler,
    chat: ChatFormat,
    conversation: Conversation,
    text: str,
    *,
    sampling: SamplingConfig,
    lora: Any | None,
    version: int | None,
    max_model_len: int,
    vocab_size: int | None,
) -> Reply:
    """Add a message and the reply to it to a conversation.

    Args:
        sampler: The engine.
        chat: How ids become text.
        conversation: Grows by both.
        text: The message.
        sampling: Limits and temperature.
        lora: The engine's handle, None for the base model.
        version: What the reply is stamped with.
        max_model_len: Token budget of the conversation, the reply included.
        vocab_size: See `check_reply`.

    Returns:
        The reply; `out_of_tokens` and without tokens when it might not fit the budget.

    Raises:
        NonFiniteError: As `check_reply`.
        ServerError: As `check_reply`.
    """
    added = conversation.ask(text)
    if len(conversation.ids) + sampling.max_tokens > max_model_len:
        return Reply(text="", prompt=text, out_of_tokens=True)
    sample = await sampler.generate(list(conversation.ids), sampling, lora)
    conversation.answer(list(sample.ids))
    reply = Reply(
        text=chat.decode(list(sample.ids)),
        prompt=text,
        prompt_ids=tuple(added),
        reply_ids=sample.ids,
        logprobs=sample.logprobs,
        version=version,
    )
    check_reply(reply, vocab_size=vocab_size)
    return reply


def check_reply(reply: Reply, *, vocab_size: int | None) -> None:
    """Refuse a sample that nobody could train on, before anything is built on it.

    Args:
        reply: As sampled.
        vocab_size: Rows of the model's token embedding; None leaves the upper bound of ids unchecked.

    Raises:
        NonFiniteError: A logprob is infinite or no number.
        ServerError: Ids that the model does not have, or logprobs that are not one for each of them.
    """
    if len(reply.logprobs) != len(reply.reply_ids):
        raise ServerError(f"reply: {len(reply.logprobs)} logprobs for {len(reply.reply_ids)} ids; each needs its own.")
    for place, value in enumerate(reply.logprobs):
        if not math.isfinite(value):
            raise NonFiniteError(
                f"reply: logprob {place} is {value}; a logprob must be finite. Do the adapter and the base model hold "
                "finite weights?"
            )
    for token in (*reply.prompt_ids, *reply.reply_ids):
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            raise ServerError(
                f"reply: id {token}; allowed are 0 to {'…' if vocab_size is None else vocab_size - 1}. Do tokenizer "
                "and model belong together?"
            )
