"""The seat of a script: it sees what a player may see and chooses a move."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView
from hanabi_grpo.types import Reply

Chooser = Callable[[PlayerView, random.Random], Action]
"""A rule: what to do in a position. Draws, if any, come from the generator."""


class MovingSeat(Protocol):
    """One player in one game that answers with a move instead of text."""

    def move(self, view: PlayerView) -> Action:
        """Return a legal move on this player's turn."""
        ...


class MovingPolicy(Protocol):
    """A policy whose seats answer with moves; every script is one."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> MovingSeat:
        """Return a fresh seat for `player` (from 0) in game number `game` of the deal (suite, seed)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSeat:
    """A seat that chooses by a rule; its randomness depends only on the deal, the game and the player."""

    choose: Chooser
    rng: random.Random
    style: ObservationStyle

    def move(self, view: PlayerView) -> Action:
        """Return the chosen move."""
        return self.choose(view, self.rng)

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        """Return the chosen move as text; the observation text is not built."""
        action = self.choose(view, self.rng)
        return Reply(text=format_action(action, style=self.style, num_players=view.num_players))


def seat_rng(name: str, player: int, suite: str, seed: int, game: int) -> random.Random:
    """Return the generator of one seat of the policy `name`, the same whenever this game is played again."""
    return random.Random(repr((name, player, suite, seed, game)))
