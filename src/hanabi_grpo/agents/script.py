"""An environment's scripts as players."""

from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Policy, Seat, Setup, Task
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.types import Reply


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """A script of an environment as a player."""

    policy: Policy

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.policy.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ScriptedSeat":
        """Return a fresh seat, see `rollout.loop.Player.seat`."""
        return ScriptedSeat(self.policy.seat(player, task=task, game=game))


@dataclass(frozen=True, slots=True)
class ScriptedSeat:
    """A script as one player of one game."""

    inner: Seat

    async def reply(self, seen: Observation) -> Reply:
        """Return the script's action as text; no message is built."""
        return Reply(text=self.inner.act(seen))


def make_script(setup: Setup[Any], name: str) -> ScriptedPlayer:
    """Return a script by its name; raise SettingsError if the environment has no such script."""
    check_script(setup, name)
    return ScriptedPlayer(setup.environment.policies[name]())
