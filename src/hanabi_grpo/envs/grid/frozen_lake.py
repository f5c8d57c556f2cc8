"""FrozenLake: Gymnasium's lake, with its own map for each task.

Source: Gymnasium's `toy_text/frozen_lake.py`. Each cell is frozen with probability p, and at least
one path leads from start to goal. On a slippery lake, a move goes in the intended direction or to
either side of it, each with probability 1/3.
"""

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.grid.maze import (
    DIRECTIONS,
    MOVES,
    Maze,
    MazeConfig,
    MazeGame,
    bfs,
    random_walk,
    shortest,
)

START = "S"
FROZEN = "F"
HOLE = "H"
GOAL = "G"
PLAYER = "P"

_RESOLUTION = 1 << 32
"""Resolution of the draw that decides whether a cell is frozen."""
_MOST_DRAWS = 1 << 14
"""Maximum number of maps drawn until the goal can be reached on one."""
_EASILY_FROZEN = 0.55
"""Share of frozen cells above which a lake with a path is drawn within a few milliseconds."""
_SMALL = 5
"""Largest lake on which that holds for any share."""
_LAKES_REMEMBERED = 1 << 12
_SLIP_SIGNS = {-1: "-", 0: "0", 1: "+"}
"""Notation of a slip in the name of a start."""

Position = tuple[int, int]
"""Row and column, from 0 at the upper left."""


class FrozenLakeConfig(MazeConfig):
    """Settings of FrozenLake: size and ice."""

    size: int = Field(default=4, ge=2, le=10)
    """Number of rows and columns of the lake."""
    frozen: float = Field(default=0.8, ge=0.3, le=1)
    """Probability that a cell of the lake is frozen instead of a hole."""
    slippery: bool = False
    """Whether two of three moves slip to a side of the intended direction."""


class FrozenLakeGame(MazeGame):
    """S start, F frozen, H hole, G goal, P the player."""

    legend = "S start, F frozen, H hole, G goal, P you"

    def __init__(
        self, config: FrozenLakeConfig, lake: tuple[str, ...], slips: tuple[int, ...]
    ) -> None:
        """Start at the upper left.

        Args:
            config: The settings.
            lake: The rows of the map, one character per cell.
            slips: Side to which each move slips: -1, 0 or 1; () on a lake that is not slippery.
        """
        self.config = config
        self.lake = lake
        self.slips = slips
        self.row = 0
        self.column = 0

    def won(self) -> bool:
        return self.lake[self.row][self.column] == GOAL

    def lost(self) -> bool:
        return self.lake[self.row][self.column] == HOLE

    def move(self, action: str) -> None:
        direction = DIRECTIONS.index(action)
        if self.slips:
            direction += self.slips[self.num_moves]
        taken = DIRECTIONS[direction % len(DIRECTIONS)]
        self.row, self.column = _neighbour((self.row, self.column), taken, len(self.lake))

    def rows(self) -> tuple[str, ...]:
        rows = list(self.lake)
        cells = list(rows[self.row])
        cells[self.column] = PLAYER
        rows[self.row] = "".join(cells)
        return tuple(rows)

    def hidden(self, player: int) -> Mapping[str, Any]:
        slips_to_come = self.slips[self.num_moves :]
        if not slips_to_come:
            return {}
        return {"slips": slips_to_come}

    def resampled(self, player: int, rng: random.Random) -> "FrozenLakeGame":
        other = self.copy()
        slips = list(self.slips)
        for move in range(self.num_moves, len(slips)):
            slips[move] = rng.randrange(-1, 2)
        other.slips = tuple(slips)
        return other


class FrozenLake(Maze[FrozenLakeConfig]):
    """FrozenLake."""

    name = "frozen_lake"
    Config = FrozenLakeConfig
    presets: Mapping[str, FrozenLakeConfig] = {
        "frozen_lake": FrozenLakeConfig(preset="frozen_lake"),
        "frozen_lake-slippery": FrozenLakeConfig(preset="frozen_lake-slippery", slippery=True),
    }
    text = (
        "You walk on a frozen lake. The map has S for the start, F for frozen ground, H for a "
        "hole, G for the goal and P for you. Reach the goal; a hole ends the game, and the edge of "
        "the lake stops you."
    )
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": random_walk,
        "bfs": lambda: bfs(_plan),
    }

    def may_block(self, config: FrozenLakeConfig) -> bool | None:
        """Return True for lakes with so many holes that many are drawn until one has a path."""
        is_hard = config.frozen < _EASILY_FROZEN and config.size > _SMALL
        return True if is_hard else None

    def spec(self, config: FrozenLakeConfig) -> base.EnvSpec:
        """Return the spec; without slips and with enough moves, every goal can be reached.

        A shortest path never visits a cell twice, so twice the number of cells is enough.
        """
        has_enough_moves = config.max_moves >= 2 * config.size**2
        is_certain = has_enough_moves and not config.slippery
        return replace(super().spec(config), attainable=1.0 if is_certain else None)

    def system(self, config: FrozenLakeConfig, player: int) -> str:
        message = super().system(config, player)
        if config.slippery and config.style == "full":
            message += (
                " The ice is slippery: one move of three goes where you want, the others to a side "
                "of it."
            )
        return message

    def start_id(self, config: FrozenLakeConfig, *, split: str, seed: int) -> str:
        slips = self.reset(config, split=split, seed=seed).slips
        lake = super().start_id(config, split=split, seed=seed)
        signs = [_SLIP_SIGNS[slip] for slip in slips]
        return lake + "".join(signs)

    def reset(self, config: FrozenLakeConfig, *, split: str, seed: int) -> FrozenLakeGame:
        """Draw a lake with a path to the goal, and the slips."""
        lake = _draw_solvable_lake(config.size, config.frozen, split, seed)
        slips: list[int] = []
        if config.slippery:
            for move in range(config.max_moves):
                slips.append(base.draw("slip", split, seed, move, below=3) - 1)
        return FrozenLakeGame(config, lake, tuple(slips))


@functools.lru_cache(maxsize=_LAKES_REMEMBERED)
def _draw_solvable_lake(size: int, frozen: float, split: str, seed: int) -> tuple[str, ...]:
    """Return the rows of the first of a start's lakes that has a path to the goal.

    If none of them has one because there are too many holes, a path is frozen on the last lake.
    """
    for number in range(_MOST_DRAWS):
        lake = _Lake(size, frozen, (split, seed, number))
        if lake.has_open_ends() and _way(size, lake.sign, (0, 0)) is not None:
            return lake.rows()
    position = (0, 0)
    step = 0
    while position != (size - 1, size - 1):
        lake.kept.add(position)
        row, column = position
        goes_down = base.draw("lake way", split, seed, step, below=2) == 0
        if column == size - 1 or (goes_down and row < size - 1):
            position = (row + 1, column)
        else:
            position = (row, column + 1)
        step += 1
    return lake.rows()


class _Lake:
    """A lake whose cells are drawn on demand."""

    def __init__(self, size: int, frozen: float, key: tuple[str, int, int]) -> None:
        """Draw nothing yet.

        Args:
            size: Rows and columns.
            frozen: Probability that a cell is not a hole.
            key: Split, seed, and number of the lake.
        """
        self.size = size
        self.kept: set[Position] = set()
        """Cells that are always frozen."""
        self._threshold = frozen * _RESOLUTION
        self._key = key

    def sign(self, position: Position) -> str:
        """Return the sign of a cell."""
        row, column = position
        cell = row * self.size + column
        if cell == 0:
            return START
        if cell == self.size**2 - 1:
            return GOAL
        if position in self.kept:
            return FROZEN
        drawn = base.draw("lake", *self._key, cell, below=_RESOLUTION)
        return FROZEN if drawn < self._threshold else HOLE

    def has_open_ends(self) -> bool:
        """Return whether start and goal each have a neighbor without a hole: a fast first check."""
        last = self.size - 1
        beside_start = self.sign((0, 1)) != HOLE or self.sign((1, 0)) != HOLE
        return beside_start and (
            self.sign((last, last - 1)) != HOLE or self.sign((last - 1, last)) != HOLE
        )

    def rows(self) -> tuple[str, ...]:
        """Return the map."""
        rows = []
        for row in range(self.size):
            signs = [self.sign((row, column)) for column in range(self.size)]
            rows.append("".join(signs))
        return tuple(rows)


def _neighbour(position: Position, action: str, size: int) -> Position:
    """Return the position after a move; the edge of the lake blocks moves."""
    row, column = position
    down, right = MOVES[action]
    next_row = min(max(row + down, 0), size - 1)
    next_column = min(max(column + right, 0), size - 1)
    return next_row, next_column


def _way(size: int, sign: Callable[[Position], str], start: Position) -> list[str] | None:
    """Return the shortest path from a position to the goal around the holes, or None.

    Args:
        size: Rows and columns.
        sign: Returns the sign of a cell.
        start: The position.
    """
    looked_at = functools.cache(sign)

    def after(position: Position) -> Iterator[tuple[str, Position]]:
        for action in DIRECTIONS:
            neighbour = _neighbour(position, action, size)
            if looked_at(neighbour) != HOLE:
                yield action, neighbour

    return shortest(start, after, lambda position: looked_at(position) == GOAL)


def _plan(rows: tuple[str, ...]) -> list[str] | None:
    """Return the shortest path from the player's position on the map."""
    for row, cells in enumerate(rows):
        if PLAYER in cells:
            start = (row, cells.index(PLAYER))
            return _way(len(rows), lambda position: rows[position[0]][position[1]], start)
    raise ValueError(f"no player on the map {rows}")


FROZEN_LAKE = FrozenLake()
