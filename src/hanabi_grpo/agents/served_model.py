"""The server's own model as a player: the base model, or the base model with an adapter."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.errors import NonFiniteError, ServerError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, Sampler, SamplingConfig
from hanabi_grpo.rollout.seeds import reply_seed, seat_seed
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import BASE
from hanabi_grpo.types import Reply

ONLY_BASE = ""
"""Name of the base model of a server that has no other."""
_UNKNOWN_VOCABULARY = 2**31
"""Rows of an embedding of unknown size: every token id is below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model behind every seat of a server: a sampler, and the chat format of its model."""

    sampler: Sampler
    chat: ChatFormat
    max_model_len: int
    """Token budget of a conversation, the next reply included."""
    vocab_size: int = _UNKNOWN_VOCABULARY
    """Rows of the model's token embedding."""
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)
    """See `take_turn`."""
    partners: UrlPartners = field(default_factory=lambda: UrlPartners(Settings()))
    """Models behind URLs, which may take the other seats."""

    async def take_turn(self) -> None:
        """Wait for this game's turn: one game per pass of the event loop, in order of arrival."""
        async with self.turnstile:
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamModels:
    """The base models of a server, and whose they are.

    A team of one model is the usual case: then every adapter is on it.
    """

    models: Mapping[str, Model]
    """By name as MODEL says it; the first is player_0's."""
    base_of: Mapping[str, str] = field(default_factory=dict)
    """The name of each player's model; empty where all have the first."""

    @classmethod
    def of_one(cls, model: Model) -> "TeamModels":
        """Return the models of a server with a single one."""
        return cls(models={ONLY_BASE: model})

    @property
    def first(self) -> Model:
        """The model of player_0."""
        return next(iter(self.models.values()))

    @property
    def dead(self) -> Model | None:
        """The first model whose sampler is dead; None: all live."""
        for model in self.models.values():
            if model.sampler.is_dead:
                return model
        return None

    def named(self, base: str) -> Model:
        """Return the model that a loaded adapter is on."""
        return self.models[base]

    def of_player(self, player: str) -> Model:
        """Return the model of a player, e.g. "player_1", or of the shared adapter."""
        base = self.base_of.get(player)
        return self.first if base is None else self.models[base]

    def without_adapter(self, player: str | None) -> Model:
        """Return the model that plays as a base model without an adapter.

        Args:
            player: In whose seat; None: in nobody's.

        Raises:
            SettingsError: There are several, and no seat says which.
        """
        if player is None and len(self.models) > 1:
            raise SettingsError(
                f"{BASE}: this server has several base models ({', '.join(self.models)}), and "
                "outside a game no seat says which; name an adapter (player_1@7), or ask a server "
                "that was started with one MODEL."
            )
        return self.first if player is None else self.of_player(player)


@dataclass(slots=True, kw_only=True)
class PromptTokens:
    """Tokens of the prompts that one request gave the engine, those of failed games included."""

    given: int = 0
    cached: int = 0
    """Those of the given tokens that were in the engine's prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlayer:
    """One adapter, or the base model alone, in the seats of one request."""

    model: Model
    sampling: SamplingConfig
    prompts: PromptTokens = field(default_factory=PromptTokens)
    """Counter of the tokens of this player's prompts."""
    lora: AdapterHandle | None = None
    """The loaded adapter; None: the base model."""
    version: int | None = None
    """Policy version that its replies are stamped with; None: the base model."""
    name: str = "served"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ServedSeat":
        """Return a seat with an empty conversation, see `rollout.loop.Player.seat`."""
        memory = task.config.window
        system = task.environment.system_message(task.config, player)
        request = self.sampling.seed
        return ServedSeat(
            player=self,
            conversation=Conversation(self.model.chat, system, memory),
            memory=memory,
            # Games of a group, and single games of successive tasks, cycle through the copies.
            copy_key=task.seed + game,
            seed=None if request is None else seat_seed(request, task, game, player),
        )

    async def ask(
        self,
        conversation: Conversation,
        message: str,
        copy_key: int | None = None,
        sampling: SamplingConfig | None = None,
        *,
        follows_call: bool = False,
    ) -> Reply:
        """Add a message to a conversation, sample the reply, and add that too.

        Args:
            conversation: Grows by both.
            message: The player's message on this turn.
            copy_key: Calls of the same key go to the same copy of the model, see
                `Sampler.generate`.
            sampling: Of this reply; None: the player's.
            follows_call: Whether the message is the result of a tool.

        Returns:
            The reply, or one that is `out_of_tokens` when the longest reply might not fit.

        Raises:
            NonFiniteError: The sampler returned a logprob that is infinite or not a number.
            ServerError: The sampler returned different numbers of logprobs and ids, or an id that
                the model does not have.
        """
        model = self.model
        sampling = sampling or self.sampling
        added = conversation.ask(message, follows_call=follows_call)
        prompt_ids = list(conversation.ids)
        if len(prompt_ids) + sampling.max_tokens > model.max_model_len:
            return Reply(text="", prompt=message, out_of_tokens=True)
        sample = await model.sampler.generate(prompt_ids, sampling, self.lora, copy_key)
        self.prompts.given += len(prompt_ids)
        self.prompts.cached += sample.num_cached_tokens
        await model.take_turn()
        reply_ids = list(sample.ids)
        conversation.answer(reply_ids)
        _check_sample(sample, added, model.vocab_size)
        return Reply(
            text=model.chat.decode(reply_ids),
            prompt=message,
            prompt_ids=tuple(added),
            reply_ids=sample.ids,
            logprobs=sample.logprobs,
            version=self.version,
        )

    def say(
        self, conversation: Conversation, message: str, text: str, *, follows_call: bool = False
    ) -> Reply:
        """Add a message to a conversation, and a reply to it that nobody samples.

        Args:
            conversation: Grows by both.
            message: The player's message on this turn.
            text: The reply.
            follows_call: See `ask`.

        Returns:
            The reply, whose tokens are the last of `prompt_ids`; or one that is `out_of_tokens`
            where `ask` would return such.
        """
        model = self.model
        added = conversation.ask(message, follows_call=follows_call)
        if len(conversation.ids) + self.sampling.max_tokens > model.max_model_len:
            return Reply(text="", prompt=message, out_of_tokens=True)
        ids = model.chat.said(text)
        conversation.answer(list(ids))
        return Reply(text=text, prompt=message, prompt_ids=(*added, *ids), version=self.version)


@dataclass(slots=True, kw_only=True)
class ServedSeat:
    """A served model as one player of one game."""

    player: ServedPlayer
    conversation: Conversation
    memory: int | None
    """Turns that the player sees at once; None: all of the game."""
    copy_key: int
    """See `ServedPlayer.ask`."""
    seed: int | None
    """See `seeds.seat_seed`; None: other replies each time."""
    turn: int = 0
    """Replies so far, calls of tools among them."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask the model for an action."""
        sampling = self.player.sampling
        if self.seed is not None:
            sampling = replace(sampling, seed=reply_seed(self.seed, self.turn))
        self.turn += 1
        message = seen.message()
        reply = await self.player.ask(
            self.conversation, message, self.copy_key, sampling, follows_call=seen.follows_call
        )
        return replace(reply, fresh=self._is_fresh(seen))

    async def say(self, seen: Observation, text: str) -> Reply:
        """Say a given reply where the model would make one, see `taught.SayingSeat`."""
        # The replies to come are sampled as if this one had been, too.
        self.turn += 1
        message = seen.message()
        reply = self.player.say(self.conversation, message, text, follows_call=seen.follows_call)
        return replace(reply, fresh=self._is_fresh(seen))

    def _is_fresh(self, seen: Observation) -> bool:
        """Return whether a reply begins a sequence: that of a result goes on with its turn's."""
        return self.memory is not None and not seen.follows_call


def _check_sample(sample: Sample, prompt_ids: list[int], vocab_size: int) -> None:
    """Refuse an engine's sample that cannot be trained on."""
    if len(sample.logprobs) != len(sample.ids):
        raise ServerError(
            f"reply: {len(sample.logprobs)} logprobs for {len(sample.ids)} ids; each needs its own."
        )
    check_logprobs(sample.logprobs, "reply")
    for token in (*prompt_ids, *sample.ids):
        if not 0 <= token < vocab_size:
            raise ServerError(
                f"reply: id {token}; allowed are 0 to {vocab_size - 1}. Do tokenizer and model "
                "belong together?"
            )


def check_logprobs(logprobs: Sequence[float], what: str) -> None:
    """Refuse what an engine computed with weights that are not finite.

    Args:
        logprobs: Log-probabilities of tokens, in nats.
        what: What they are of, for the message.

    Raises:
        NonFiniteError: One is infinite or not a number, which JSON could not even say.
    """
    for index, logprob in enumerate(logprobs):
        if not math.isfinite(logprob):
            raise NonFiniteError(
                f"{what}: logprob {index} is {logprob}; a logprob must be finite. Do the adapter "
                "and the base model hold finite weights?"
            )
