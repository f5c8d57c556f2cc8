"""Scripts of an environment as players."""

from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Policy, Seat, Setup, Task
from hanabi_grpo.rollout.loop import Run, run_here
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.types import Reply


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """A script of an environment as a player."""

    policy: Policy
    run: Run = run_here
    """How its moves are made."""

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.policy.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ScriptedSeat":
        """Return a fresh seat, see `rollout.loop.Player.seat`."""
        return ScriptedSeat(self.policy.seat(player, task=task, game=game), self.run)


@dataclass(frozen=True, slots=True)
class ScriptedSeat:
    """A script as one player of one game."""

    inner: Seat
    run: Run = run_here
    """How its moves are made."""

    async def reply(self, seen: Observation) -> Reply:
        """Return the script's action as text; no message is built."""
        return Reply(text=await self.run(self.inner.act, seen))


def make_script(setup: Setup[Any], name: str, run: Run = run_here) -> ScriptedPlayer:
    """Return a script by its name; SettingsError where the environment has no such script.

    Args:
        setup: What is played.
        name: Name of the script.
        run: How its moves are made.
    """
    check_script(setup, name)
    return ScriptedPlayer(setup.environment.policies[name](), run)
