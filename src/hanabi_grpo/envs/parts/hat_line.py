"""Hats in a line: players see the hats in front, hear the answers behind, and name their own hat.

The optimum is known. With n players and hats of k colors, all but the first speaker can always be
right: the first speaker says the sum of all hats that it sees modulo k, and is itself right in one
of k cases. No strategy helps the first speaker more, because no earlier speaker has seen its hat.
"""

import math
import random
from collections.abc import Callable, Mapping

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.parts.puzzle import (
    BABBLE,
    Babble,
    Parts,
    Puzzle,
    PuzzleConfig,
    PuzzleGame,
    code_script,
)
from hanabi_grpo.types import MAX_PLAYERS

HATS = ("red", "blue", "green", "white", "black", "yellow")
"""Colors of hats, in the order in which the script numbers them."""


class HatLineConfig(PuzzleConfig):
    """Settings of the hat line."""

    players: int = Field(default=3, ge=2, le=MAX_PLAYERS)
    """Number of players."""
    hats: int = Field(default=2, ge=2, le=len(HATS))
    """Number of hat colors in a hat line."""


class HatLineGame(PuzzleGame[HatLineConfig]):
    """`numbers` are the hats, starting with the first speaker's."""

    def num_seats(self) -> int:
        return self.config.players

    def seen(self, player: int) -> tuple[int, ...]:
        return self.numbers[player + 1 :]

    def words(self, player: int) -> tuple[str, ...]:
        return HATS[: self.config.hats]

    def answers(self) -> Mapping[int, str]:
        return {seat: HATS[hat] for seat, hat in enumerate(self.numbers)}

    def redrawn(self, player: int, rng: random.Random) -> tuple[int, ...]:
        others = [rng.randrange(self.config.hats) for _ in range(player + 1)]
        return (*others, *self.seen(player))

    def text(self, player: int, view: Parts) -> str:
        heard = ", ".join(view.heard) or "nothing yet"
        seen = ", ".join(HATS[hat] for hat in view.seen) or "none"
        return (
            f"Answers behind you, the first one first: {heard}. Hats in front of you, the nearest "
            f"first: {seen}. Which colour is your own hat?"
        )


def _parity(player: int, view: Parts, legal: tuple[str, ...]) -> str:
    """Return the sum of the visible hats for the first speaker, and the remainder for others."""
    num_hats = len(legal)
    seen = sum(view.seen)
    if player == 0:
        return legal[seen % num_hats]
    total, *others = (legal.index(word) for word in view.heard)
    return legal[(total - sum(others) - seen) % num_hats]


class HatLine(Puzzle[HatLineConfig]):
    """A line of players."""

    name = "hat_line"
    Config = HatLineConfig
    Game = HatLineGame
    presets: Mapping[str, HatLineConfig] = {
        "hat_line": HatLineConfig(preset="hat_line"),
        "hat_line-4": HatLineConfig(preset="hat_line-4", players=4),
    }
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        BABBLE: Babble,
        "parity": lambda: code_script("parity", _parity),
    }

    def num_seats(self, config: HatLineConfig) -> int:
        return config.players

    def roles(self, config: HatLineConfig) -> tuple[str, ...]:
        return tuple(f"speaker {number + 1}" for number in range(config.players))

    def limits(self, config: HatLineConfig) -> tuple[int, ...]:
        return (config.hats,) * config.players

    def ceiling(self, config: HatLineConfig) -> float:
        """Return (n - 1 + 1/k) / n, which announcing the sum modulo k reaches."""
        return (config.players - 1 + 1 / config.hats) / config.players

    def ceiling_without_words(self, config: HatLineConfig) -> float:
        """Return 1/k: the hats that a player sees say nothing about its own."""
        return 1 / config.hats

    def bits_needed(self, config: HatLineConfig) -> float:
        return math.log2(config.hats)

    def system(self, config: HatLineConfig, player: int) -> str:
        if config.style == "compact":
            return ""
        colours = ", ".join(HATS[: config.hats])
        return (
            f"{config.players} players stand in a line, each with a hat of one of these colours: "
            f"{colours}. You are number {player + 1} to speak. You see the hats of all who speak "
            "after you, you hear the answers of all who spoke before you, and you name the colour "
            "of your own hat. The team is paid for each right answer. You could agree on nothing "
            "beforehand; what an answer tells the others is for all of you to find out. End your "
            "reply with one of the colours on a line of its own."
        )


HAT_LINE = HatLine()
