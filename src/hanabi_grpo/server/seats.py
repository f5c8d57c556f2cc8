"""Served adapters as players: one private conversation per seat and game."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import system_prompt
from hanabi_grpo.envs.hanabi.rules import GameSpec, PlayerView
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
        config: EnvConfig,
        max_model_len: int,
    ) -> None:
        """Bind a rollout to its adapters.

        Args:
            sampler: The engine.
            chat: How conversations become ids.
            loras: Per player name the engine's handle and the version; a player that is absent uses the base model.
            sampling: Limits and temperature of each reply.
            config: The game; its style and bomb rule choose the system message.
            max_model_len: Token budget of a conversation, the next reply included.
        """
        self.sampler, self.chat, self.loras, self.sampling = sampler, chat, loras, sampling
        self.config, self.max_model_len = config, max_model_len

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "ServedSeat":
        """Return a fresh private conversation for one game."""
        return ServedSeat(self, player, self.system(player))

    def system(self, player: int) -> str:
        """Return the system message of a player's conversations; "" for none."""
        config = self.config
        return system_prompt(config.spec(), config.observation, player, bomb_rule=config.bomb_rule)


class ServedSeat:
    """One player of one game."""

    def __init__(self, policy: ServedPolicy, player: int, system: str) -> None:
        """Start the conversation; `system` is its first message unless empty."""
        self._policy = policy
        held: tuple[Any, int | None] = policy.loras.get(player_name(player), (None, None))
        self._lora, self._version = held
        self._conversation = Conversation(policy.chat, system)

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        """Ask the model for a move; `out_of_tokens` when the reply might not fit the budget."""
        policy = self._policy
        return await ask_model(
            policy.sampler,
            policy.chat,
            self._conversation,
            prompt(),
            sampling=policy.sampling,
            lora=self._lora,
            version=self._version,
            max_model_len=policy.max_model_len,
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

    Returns:
        The reply; `out_of_tokens` and without tokens when it might not fit the budget.
    """
    added = conversation.ask(text)
    if len(conversation.ids) + sampling.max_tokens > max_model_len:
        return Reply(text="", prompt=text, out_of_tokens=True)
    sample = await sampler.generate(list(conversation.ids), sampling, lora)
    conversation.answer(list(sample.ids))
    return Reply(
        text=chat.decode(list(sample.ids)),
        prompt=text,
        prompt_ids=tuple(added),
        reply_ids=sample.ids,
        logprobs=sample.logprobs,
        version=version,
    )
