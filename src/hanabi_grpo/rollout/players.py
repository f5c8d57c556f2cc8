"""Who plays: the contract between the loop and a model, a script or a person."""

from dataclasses import dataclass
from typing import Any, Protocol

from hanabi_grpo.envs import base
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.types import Reply


class PlayerSeat(Protocol):
    """One player in one game, with its private state, e.g. a conversation."""

    async def reply(self, seen: base.Observation) -> Reply:
        """Answer on this player's turn.

        Args:
            seen: What the player may look at; texts are built when asked, so games of scripts stay fast.
        """
        ...


class Player(Protocol):
    """A way to play, shared by any number of games."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def seat(self, player: int, *, task: base.Task[Any], game: int) -> PlayerSeat:
        """Return a fresh seat for `player` (from 0) in game number `game` of the task."""
        ...


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """A script of an environment as a player."""

    policy: base.Policy

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.policy.name

    def seat(self, player: int, *, task: base.Task[Any], game: int) -> "ScriptedSeat":
        """Return a fresh seat."""
        return ScriptedSeat(self.policy.seat(player, task=task, game=game))


@dataclass(frozen=True, slots=True)
class ScriptedSeat:
    """A script as one player of one game."""

    inner: base.Seat

    async def reply(self, seen: base.Observation) -> Reply:
        """Return the script's action as text; no message is built."""
        return Reply(text=self.inner.act(seen))


def make_script(setup: base.Setup[Any], name: str) -> ScriptedPlayer:
    """Return a script by its name.

    Raises:
        SettingsError: The environment has no such script.
    """
    check_script(setup, name)
    return ScriptedPlayer(setup.environment.policies[name]())


def check_script(setup: base.Setup[Any], name: str) -> None:
    """Refuse a script that the environment does not have.

    Raises:
        SettingsError: So it is.
    """
    if name not in setup.environment.policies:
        known = ", ".join(setup.environment.policies) or "none"
        raise SettingsError(f"{shown(name)}: the environment {setup.env} has no such script; its scripts: {known}.")
