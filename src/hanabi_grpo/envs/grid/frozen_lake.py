"""FrozenLake: gymnasium's lake with a map of its own for each task.

Source: gymnasium's `toy_text/frozen_lake.py`. Each cell is frozen with chance p, some way leads
from start to goal, and on a slippery lake a move goes in the wanted direction or to either side of
it, each with chance 1/3.
"""

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
"""Steps of the draw that decides whether a cell is frozen."""
_MOST_DRAWS = 1 << 16
"""Maps that are drawn at most until the goal can be reached on one."""
_SLIP_SIGNS = {-1: "-", 0: "0", 1: "+"}
"""How the name of a start writes a slip."""

Position = tuple[int, int]
"""Row and column, from 0 at the upper left."""


class FrozenLakeConfig(MazeConfig):
    """Size and ice."""

    size: int = Field(default=4, ge=2, le=10)
    """Rows and columns of the lake."""
    frozen: float = Field(default=0.8, ge=0.3, le=1)
    """Chance that a cell of the lake is frozen and no hole."""
    slippery: bool = False
    """Whether two moves of three go to a side of the wanted direction."""


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
            slips: To which side each move slips: -1, 0 or 1; () on a lake that is not slippery.
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

    def spec(self, config: FrozenLakeConfig) -> base.EnvSpec:
        """Return the spec of one player; without slips and with enough moves every goal is reached.

        No shortest way visits a cell twice, so twice the number of cells is more than enough.
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
        """Draw a lake on which some way leads to the goal, and the slips."""
        for number in range(_MOST_DRAWS):
            lake = _draw_lake(config, split, seed, number)
            if _shortest_way(lake, (0, 0)) is not None:
                break
        slips: list[int] = []
        if config.slippery:
            for move in range(config.max_moves):
                slips.append(base.draw("slip", split, seed, move, below=3) - 1)
        return FrozenLakeGame(config, lake, tuple(slips))


def _draw_lake(config: FrozenLakeConfig, split: str, seed: int, number: int) -> tuple[str, ...]:
    """Return the rows of lake `number` of a start; not every lake has a way to the goal."""
    size = config.size
    last = size**2 - 1
    threshold = config.frozen * _RESOLUTION
    cells = []
    for cell in range(size**2):
        if cell == 0:
            cells.append(START)
        elif cell == last:
            cells.append(GOAL)
        elif base.draw("lake", split, seed, number, cell, below=_RESOLUTION) < threshold:
            cells.append(FROZEN)
        else:
            cells.append(HOLE)
    rows = []
    for first in range(0, size**2, size):
        rows.append("".join(cells[first : first + size]))
    return tuple(rows)


def _neighbour(position: Position, action: str, size: int) -> Position:
    """Return where a move leads; the edge of the lake stops it."""
    row, column = position
    down, right = MOVES[action]
    next_row = min(max(row + down, 0), size - 1)
    next_column = min(max(column + right, 0), size - 1)
    return next_row, next_column


def _shortest_way(rows: tuple[str, ...], start: Position) -> list[str] | None:
    """Return the fewest moves from a position to the goal around the holes, None without a way."""

    def after(position: Position) -> Iterator[tuple[str, Position]]:
        for action in DIRECTIONS:
            row, column = _neighbour(position, action, len(rows))
            if rows[row][column] != HOLE:
                yield action, (row, column)

    def is_goal(position: Position) -> bool:
        row, column = position
        return rows[row][column] == GOAL

    return shortest(start, after, is_goal)


def _plan(rows: tuple[str, ...]) -> list[str] | None:
    """Return the shortest way from where the player is on the map."""
    for row, cells in enumerate(rows):
        if PLAYER in cells:
            return _shortest_way(rows, (row, cells.index(PLAYER)))
    raise ValueError(f"no player on the map {rows}")


FROZEN_LAKE = FrozenLake()
