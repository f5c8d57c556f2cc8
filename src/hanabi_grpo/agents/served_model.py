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
"""Name of the base model of a server with only one."""
_UNKNOWN_VOCABULARY = 2**31
"""Stands for an unknown vocabulary size: every token id is below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model behind every seat of a server: a sampler, and the chat format of its model."""

    sampler: Sampler
    chat: ChatFormat
    max_model_len: int
    """Token budget of a conversation, including the next reply."""
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
    """The base models of a server, and which player has which.

    Usually there is a single base model for all adapters.
    """

    models: Mapping[str, Model]
    """By name as MODEL spells it; the first is player_0's."""
    base_of: Mapping[str, str] = field(default_factory=dict)
    """The name of each player's model; empty if all players have the first."""

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
        """The first model whose sampler is dead; None: all are alive."""
        for model in self.models.values():
            if model.sampler.is_dead:
                return model
        return None

    def named(self, base: str) -> Model:
        """Return the base model of a loaded adapter."""
        return self.models[base]

    def of_player(self, player: str) -> Model:
        """Return the model of a player, e.g. "player_1", or of the shared adapter."""
        base = self.base_of.get(player)
        return self.first if base is None else self.models[base]

    def without_adapter(self, player: str | None) -> Model:
        """Return the model that plays as a base model without an adapter.

        Args:
            player: The player whose seat it takes; None: no seat.

        Raises:
            SettingsError: There are several models, and no seat to choose by.
        """
        if player is None and len(self.models) > 1:
            raise SettingsError(
                f"{BASE}: this server has several base models ({', '.join(self.models)}), and "
                "outside a game the seat does not determine which one; name an adapter "
                "(player_1@7), or use a server that was started with one MODEL."
            )
        return self.first if player is None else self.of_player(player)


@dataclass(slots=True, kw_only=True)
class PromptTokens:
    """Prompt tokens that one request sent to the engine, including those of failed games."""

    given: int = 0
    cached: int = 0
    """How many of the given tokens were in the engine's prefix cache."""


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
            # The games of a group, and single games of successive tasks, cycle through the copies.
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
        """Add a message to a conversation, sample the reply, and add the reply too.

        Args:
            conversation: The message and the reply are appended to it.
            message: The player's message on this turn.
            copy_key: Calls with the same key go to the same copy of the model, see
                `Sampler.generate`.
            sampling: Sampling of this reply; None: the player's.
            follows_call: Whether the message is the result of a tool.

        Returns:
            The reply, or one that is `out_of_tokens` when the longest reply might not fit.

        Raises:
            NonFiniteError: The sampler returned a logprob that is infinite or NaN.
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
        """Add a message to a conversation, and a given reply that is not sampled.

        Args:
            conversation: The message and the reply are appended to it.
            message: The player's message on this turn.
            text: The reply.
            follows_call: See `ask`.

        Returns:
            The reply, whose tokens are the last of `prompt_ids`; or, where `ask` would, a reply
            that is `out_of_tokens`.
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
    """Number of turns that the player sees at once; None: the whole game."""
    copy_key: int
    """See `ServedPlayer.ask`."""
    seed: int | None
    """See `seeds.seat_seed`; None: replies differ each time."""
    turn: int = 0
    """Replies so far, including tool calls."""

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
        """Use a given reply instead of sampling one, see `taught.SayingSeat`."""
        # Later replies are sampled as if this one had been sampled too.
        self.turn += 1
        message = seen.message()
        reply = self.player.say(self.conversation, message, text, follows_call=seen.follows_call)
        return replace(reply, fresh=self._is_fresh(seen))

    def _is_fresh(self, seen: Observation) -> bool:
        """Return whether a reply begins a sequence; after a tool result, its turn's continues."""
        return self.memory is not None and not seen.follows_call


def _check_sample(sample: Sample, prompt_ids: list[int], vocab_size: int) -> None:
    """Reject an engine's sample that cannot be trained on."""
    if not sample.ids:
        raise ServerError(
            f"reply: no token ({sample.finish_reason}); a model samples at least the one that ends "
            "its reply. See the server's log."
        )
    if len(sample.logprobs) != len(sample.ids):
        raise ServerError(
            f"reply: {len(sample.logprobs)} logprobs for {len(sample.ids)} ids; each id needs one."
        )
    check_logprobs(sample.logprobs, "reply")
    for token in (*prompt_ids, *sample.ids):
        if not 0 <= token < vocab_size:
            raise ServerError(
                f"reply: id {token}; allowed are 0 to {vocab_size - 1}. Check that the tokenizer "
                "belongs to the model."
            )


def check_logprobs(logprobs: Sequence[float], what: str) -> None:
    """Reject logprobs that an engine computed from weights that are not finite.

    Args:
        logprobs: Log-probabilities of tokens, in nats.
        what: What the logprobs belong to, for the error message.

    Raises:
        NonFiniteError: One is infinite or NaN, which JSON cannot represent.
    """
    for index, logprob in enumerate(logprobs):
        if not math.isfinite(logprob):
            raise NonFiniteError(
                f"{what}: logprob {index} is {logprob}; a logprob must be finite. Check that the "
                "weights of the adapter and the base model are finite."
            )
