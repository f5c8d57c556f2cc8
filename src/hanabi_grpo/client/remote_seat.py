"""Models on a rollout server as partners of a game that is played here, one request per reply."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.types import Reply

Said = tuple[str, tuple[int, ...]]
"""One past turn of a private conversation: the prompt, and the ids of the reply."""


class Replier(Protocol):
    """The one call of `RolloutClient` that samples a single reply."""

    def reply(
        self, *, seat: str, system: str, turns: Sequence[Said], prompt: str, max_tokens: int, temperature: float
    ) -> Reply:
        """Sample the reply of a seat's word (see `refs`) after a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """A model in one seat.

    Example:
        RemotePolicy(client=client, seat_word="player_1@7", max_tokens=4, temperature=1.0)
    """

    client: Replier
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


class RemoteSeat:
    """One player of one game; the server keeps nothing between two replies."""

    def __init__(self, policy: RemotePolicy, system: str) -> None:
        self._policy = policy
        self._system = system
        self._said: list[Said] = []

    async def reply(self, seen: Observation) -> Reply:
        """Ask the server; the calling thread waits for it.

        Raises:
            ServerError: The server was not reached, no longer holds the adapter, or its answer is none.
        """
        text, policy = seen.message(), self._policy
        reply = policy.client.reply(
            seat=policy.seat_word,
            system=self._system,
            turns=tuple(self._said),
            prompt=text,
            max_tokens=policy.max_tokens,
            temperature=policy.temperature,
        )
        if not reply.out_of_tokens:
            self._said.append((text, reply.reply_ids))
        return replace(reply, prompt=text)
