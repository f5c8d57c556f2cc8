"""The contract between the game loop and whoever plays."""

from collections.abc import Callable
from typing import Protocol

from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import PlayerView
from hanabi_grpo.types import Reply


class Seat(Protocol):
    """One player in one game, with its private state (a conversation, a random generator)."""

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        """Answer on this player's turn.

        Args:
            view: What the player may see.
            prompt: Builds the observation text; scripts never call it, so their games stay fast.
        """
        ...


class Policy(Protocol):
    """A way to play, shared by any number of games."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> Seat:
        """Return a fresh seat for `player` (from 0) in game number `game` of the deal (suite, seed)."""
        ...
