"""FrozenLake: gymnasium's lake with a map of its own for each task.

Source: gymnasium's `toy_text/frozen_lake.py`: each cell is frozen with chance p, some way leads
from start to goal, and
on a slippery lake a move goes in the wanted direction or to either side of it, each with chance
1/3."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.grid.maze import MOVES, Maze, MazeConfig, MazeGame, bfs, random_walk, shortest

_ORDER = tuple(MOVES)
_RESOLUTION = 1 << 32


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

    def __init__(
        self, config: FrozenLakeConfig, lake: tuple[str, ...], slips: tuple[int, ...]
    ) -> None:
        """Start at the upper left; `slips[k]` is -1, 0 or 1: to which side move k slips on a
        slippery lake.
        """
        self.config, self.lake, self.slips = config, lake, slips
        self.row = self.column = 0

    def won(self) -> bool:
        return self.lake[self.row][self.column] == "G"

    def lost(self) -> bool:
        return self.lake[self.row][self.column] == "H"

    def move(self, action: str) -> None:
        place = _ORDER.index(action) + (self.slips[self.num_moves] if self.slips else 0)
        self.row, self.column = _next(self.row, self.column, _ORDER[place % 4], len(self.lake))

    def rows(self) -> tuple[str, ...]:
        row = self.lake[self.row]
        with_player = f"{row[: self.column]}P{row[self.column + 1 :]}"
        return (*self.lake[: self.row], with_player, *self.lake[self.row + 1 :])

    def hidden(self, player: int) -> Mapping[str, Any]:
        left = self.slips[self.num_moves :]
        return {"slips": left} if left else {}

    def resampled(self, player: int, rng: random.Random) -> "FrozenLakeGame":
        other = self.copy()
        count = len(self.slips) - self.num_moves
        other.slips = (*self.slips[: self.num_moves], *(rng.randrange(-1, 2) for _ in range(count)))
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
        "hole, G for the goal "
        "and P for you. Reach the goal; a hole ends the game, and the edge of the lake stops you."
    )
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": random_walk,
        "bfs": lambda: bfs(_plan),
    }

    def spec(self, config: FrozenLakeConfig) -> base.EnvSpec:
        """Return one player's; without slips every goal can be reached."""
        fits = not config.slippery and config.max_moves >= 2 * config.size**2
        return replace(super().spec(config), attainable=1.0 if fits else None)

    def system(self, config: FrozenLakeConfig, player: int) -> str:
        ice = (
            " The ice is slippery: one move of three goes where you want, the others to a side "
            "of it."
        )
        return super().system(config, player) + ice * (config.slippery and config.style == "full")

    def start_id(self, config: FrozenLakeConfig, *, split: str, seed: int) -> str:
        slips = self.reset(config, split=split, seed=seed).slips
        return super().start_id(config, split=split, seed=seed) + "".join(
            "0+-"[slip] for slip in slips
        )

    def reset(self, config: FrozenLakeConfig, *, split: str, seed: int) -> FrozenLakeGame:
        """Draw a lake on which some way leads to the goal, and the slips."""
        for number in range(1 << 16):
            if _way(lake := _lake(config, split, seed, number)) is not None:
                break
        slips = tuple(
            base.draw("slip", split, seed, move, below=3) - 1 for move in range(config.max_moves)
        )
        return FrozenLakeGame(config, lake, slips if config.slippery else ())


def _lake(config: FrozenLakeConfig, split: str, seed: int, number: int) -> tuple[str, ...]:
    last = config.size**2 - 1
    cells = [
        "SG"[cell == last]
        if cell in (0, last)
        else "HF"[
            base.draw("lake", split, seed, number, cell, below=_RESOLUTION)
            < config.frozen * _RESOLUTION
        ]
        for cell in range(config.size**2)
    ]
    return tuple(
        "".join(cells[row : row + config.size]) for row in range(0, config.size**2, config.size)
    )


def _next(row: int, column: int, action: str, size: int) -> tuple[int, int]:
    down, right = MOVES[action]
    return min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)


def _way(rows: tuple[str, ...], start: tuple[int, int] = (0, 0)) -> list[str] | None:
    def after(here: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        for action in MOVES:
            row, column = _next(*here, action, len(rows))
            if rows[row][column] != "H":
                yield action, (row, column)

    return shortest(start, after, lambda here: rows[here[0]][here[1]] == "G")


def _plan(rows: tuple[str, ...]) -> list[str] | None:
    [start] = [(row, text.index("P")) for row, text in enumerate(rows) if "P" in text]
    return _way(rows, start)


FROZEN_LAKE = FrozenLake()
