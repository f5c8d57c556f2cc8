"""Model teachers: the logprobs that they give a player's replies (HANABI_TEACHER).

The teacher reads the player's own conversation and scores the tokens that the player sampled, as
`/score/` does. Its logprobs are stored with the turn as a `Lesson` and do not affect the game.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from hanabi_grpo.agents.served_model import Model, ServedPlayer, ServedSeat
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.errors import NonFiniteError
from hanabi_grpo.rollout.handshake import tokenizer_hash
from hanabi_grpo.types import Lesson, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPlayer:
    """A served player whose replies another served model scores."""

    player: ServedPlayer
    teacher: ServedPlayer

    @property
    def name(self) -> str:
        """Name of the player."""
        return self.player.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ScoredSeat":
        """Return a fresh seat, see `rollout.loop.Player.seat`."""
        seat = self.player.seat(player, task=task, game=game)
        return ScoredSeat(seat=seat, teacher=self.teacher)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSeat:
    """One player of one game, with its teacher."""

    seat: ServedSeat
    teacher: ServedPlayer

    async def reply(self, seen: Observation) -> Reply:
        """Return the player's reply with the teacher's logprobs of its tokens.

        Raises:
            NonFiniteError: One of the logprobs is infinite or NaN.
        """
        reply = await self.seat.reply(seen)
        ids = self.seat.conversation.ids
        # The engine needs room for one more token than it scores.
        if not reply.reply_ids or len(ids) >= self.teacher.model.max_model_len:
            return reply
        prompt_ids = ids[: -len(reply.reply_ids)]
        logprobs = await self.teacher.model.sampler.score(
            prompt_ids, list(reply.reply_ids), self.teacher.lora
        )
        for logprob in logprobs:
            if not math.isfinite(logprob):
                raise NonFiniteError(
                    f"a teacher's logprob is {logprob}; a logprob must be finite. Check that the "
                    "weights of the teacher's adapter and base model are finite."
                )
        return replace(reply, lesson=Lesson(logprobs=tuple(logprobs)))


def have_same_tokens(model: Model, other: Model) -> bool:
    """Tell whether the tokens of a conversation with one model mean the same to another."""
    if model.chat is other.chat:
        return True
    tokenizers = (model.chat.tokenizer, other.chat.tokenizer)
    one, two = map(tokenizer_hash, tokenizers)
    return one == two and model.chat.hash == other.chat.hash
