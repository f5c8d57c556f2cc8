"""The counters of one line-up: games go in one by one."""

import zlib

import numpy as np

from hanabi_grpo.envs.hanabi.conventions.layout import GameCount, layout_of
from hanabi_grpo.envs.hanabi.conventions.walk import count_game
from hanabi_grpo.envs.hanabi.rules import Game, GameSpec
from hanabi_grpo.errors import GameParameterError

NUM_GROUPS = 32
"""Groups of deals. Leaving out one at a time gives the standard errors, which are then good to about one eighth."""


class ConventionCounts:
    """What the games of one line-up on one board add up to; memory does not grow with the number of games.

    A hash of the deck puts a game into one of `NUM_GROUPS` groups, so all games of one deal count as one draw in the
    standard errors, and the same games give the same counts in whatever order and on however many machines they are
    added.

    Example:
        counts = ConventionCounts(make_spec("laptop"))
        counts.add(game)

    Attributes:
        spec: The board.
    """

    __slots__ = ("_groups", "_layout", "spec")

    def __init__(self, spec: GameSpec) -> None:
        """Start from nothing."""
        self.spec = spec
        self._layout = layout_of(spec)
        self._groups: list[list[int]] = [[0] * self._layout.size for _ in range(NUM_GROUPS)]

    @property
    def num_games(self) -> int:
        """Number of games added."""
        return sum(row[GameCount.GAMES] for row in self._groups)

    def add(self, game: Game) -> None:
        """Count one game; an interrupt leaves it counted completely or not at all.

        A game that was cut off before its end counts as far as it went.

        Raises:
            GameParameterError: The game is on another board; nothing is counted.
        """
        self._check_board(game.spec, "a game")
        deck = bytes([8 * card.color + card.rank for card in game.deck])
        group = zlib.crc32(deck) % NUM_GROUPS
        row = self._groups[group].copy()
        count_game(game, self._layout, row)
        self._groups[group] = row

    def groups(self) -> np.ndarray:
        """Return the counters [group of deals, counter], of those groups that have games."""
        rows = [row for row in self._groups if row[GameCount.GAMES]]
        return np.array(rows, dtype=np.int64).reshape(len(rows), self._layout.size)

    def _check_board(self, spec: GameSpec, what: str) -> None:
        if spec is not self.spec and spec.hash != self.spec.hash:
            raise GameParameterError(
                f"{what} on {spec.preset} with {spec.num_players} players (board {spec.hash}): these are the counts of "
                f"{self.spec.preset} with {self.spec.num_players} players (board {self.spec.hash}); count every board "
                "on its own."
            )
