"""Models on a rollout server as partners of a game that is played here, one request per reply."""

from dataclasses import dataclass, field, replace
from typing import Any

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.types import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """A model in one seat.

    Example:
        RemotePolicy(client=client, seat_word="player_1@7", max_tokens=4, temperature=1.0)
    """

    client: RolloutClient
    seat_word: str
    max_tokens: int
    """Per reply."""
    temperature: float
    """Of sampling; 0 is greedy."""

    @property
    def name(self) -> str:
        """The seat's word."""
        return self.seat_word

    def seat(self, player: int, *, task: Task[Any], game: int) -> "RemoteSeat":
        """Return a private conversation for one game."""
        return RemoteSeat(self, task.environment.system(task.config, player))


@dataclass(frozen=True, slots=True)
class RemoteSeat:
    """One player of one game; the server keeps nothing between two replies."""

    policy: RemotePolicy
    system: str
    said: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    """The past turns of its conversation: the prompt, and the ids of the reply."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask the server; the calling thread waits for it.

        Raises:
            ServerError: The server was not reached, no longer holds the adapter, or its answer is none.
        """
        text, policy, fresh = seen.message(), self.policy, seen.memory == "turn"
        reply = policy.client.reply(
            seat=policy.seat_word,
            system=self.system,
            turns=tuple(self.said),
            prompt=text,
            max_tokens=policy.max_tokens,
            temperature=policy.temperature,
        )
        if not reply.out_of_tokens and not fresh:
            self.said.append((text, reply.reply_ids))
        return replace(reply, prompt=text, fresh=fresh)
