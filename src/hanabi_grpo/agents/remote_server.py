"""Models of a rollout server in games that this process runs: one request per reply."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hanabi_grpo.agents.memory import past_turn, remembered_requests
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.types import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePlayer:
    """An adapter of a server, or its base model, as a player."""

    client: RolloutClient
    name: str
    """The policy of the seat as requests name it, e.g. "player_1@7"."""
    max_tokens: int
    """Longest reply, in tokens."""
    temperature: float
    renew: Callable[[], str] | None = None
    """Returns the name that the server now knows it by, when it no longer holds `name`: a newer
    version, or the same adapter uploaded again. None: such a game ends with an error."""

    def seat(self, player: int, *, task: Task[Any], game: int) -> "RemoteSeat":
        """Return a seat with an empty conversation, see `rollout.loop.Player.seat`."""
        system = task.environment.system_message(task.config, player)
        return RemoteSeat(player=self, system=system, name=self.name)


@dataclass(slots=True, kw_only=True)
class RemoteSeat:
    """A server's model as one player of one game; the server keeps no state between replies."""

    player: RemotePlayer
    system: str
    name: str
    """The policy of the seat as the last request named it."""
    past: list[EarlierTurn] = field(default_factory=list)
    """Past turns of the conversation."""

    async def reply(self, seen: Observation) -> Reply:
        """Ask the server, see `RolloutClient.reply`; the calling thread waits for it."""
        memory = seen.window
        request = ReplyRequest(
            seat=self.name,
            system=self.system,
            turns=remembered_requests(self.past, memory, is_continued=seen.follows_call),
            fresh=memory is not None,
            prompt=seen.message(),
            follows_call=seen.follows_call,
            max_tokens=self.player.max_tokens,
            temperature=self.player.temperature,
        )
        try:
            reply = self.player.client.reply(request)
        except ServerGoneError:
            raise
        except ServerError:
            if self.player.renew is None:
                raise
            # A trainer may have pushed a newer version, or the server dropped a guest.
            name = self.player.renew()
            if name == self.name:
                raise
            self.name = name
            request = msgspec.structs.replace(request, seat=name)
            reply = self.player.client.reply(request)
        if not reply.out_of_tokens:
            self.past.append(past_turn(request, reply))
        return replace(reply, fresh=request.fresh and not request.follows_call)
