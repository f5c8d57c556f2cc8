"""Sokoban: push every box onto a goal. Maps are made by pulling boxes off the goals, so each can be
solved.

Signs as levels are usually written: # wall, . goal, $ box, * box on a goal, @ player, + player on a
goal, - floor."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from hanabi_grpo.envs import base
from hanabi_grpo.envs.grid.maze import MOVES, Maze, MazeConfig, MazeGame, bfs, random_walk, shortest
from hanabi_grpo.errors import SettingsError

Cell = tuple[int, int]


class SokobanConfig(MazeConfig):
    """Size and boxes."""

    size: int = Field(default=5, ge=3, le=10)
    """Rows and columns of the room within its walls."""
    boxes: int = 1
    """Boxes in the room, at least 1 and at most a quarter of its cells."""
    pulls: int = Field(default=60, ge=1, le=200)
    """Moves back from the solved map by which a start is made; more of them are harder."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        most = self.size**2 // 4
        if not 1 <= self.boxes <= most:
            raise SettingsError(
                f"boxes={self.boxes}: must be from 1 to {most}, a quarter of the cells."
            )
        return self


class Place(NamedTuple):
    """Where everything is that moves."""

    player: Cell
    boxes: frozenset[Cell]


class SokobanGame(MazeGame):
    """A room of `size` by `size` cells; all that is not in it is wall."""

    def __init__(self, config: SokobanConfig, goals: frozenset[Cell], place: Place) -> None:
        self.config, self.size, self.goals, self.place = config, config.size, goals, place

    def won(self) -> bool:
        return self.place.boxes == self.goals

    def move(self, action: str) -> None:
        self.place = _pushed(self.place, action, self.size)

    def rows(self) -> tuple[str, ...]:
        inner = (
            "".join(self._sign((row, column)) for column in range(self.size))
            for row in range(self.size)
        )
        wall = "#" * (self.size + 2)
        return (wall, *(f"#{row}#" for row in inner), wall)

    def _sign(self, cell: Cell) -> str:
        on_goal = cell in self.goals
        if cell == self.place.player:
            return "@+"[on_goal]
        return "$*"[on_goal] if cell in self.place.boxes else "-."[on_goal]


class Sokoban(Maze[SokobanConfig]):
    """Sokoban."""

    name = "sokoban"
    Config = SokobanConfig
    presets: Mapping[str, SokobanConfig] = {
        "sokoban": SokobanConfig(preset="sokoban", max_moves=30),
        "sokoban-2": SokobanConfig(preset="sokoban-2", size=6, boxes=2, pulls=100, max_moves=60),
    }
    text = (
        "You play Sokoban: push every box onto a goal. The map has # for a wall, - for floor, . "
        "for a goal, $ for a "
        "box, * for a box on a goal, @ for you and + for you on a goal. You push a box by moving "
        "against it; you "
        "cannot pull, nor push two boxes or a box into a wall."
    )
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": random_walk,
        "bfs": lambda: bfs(_plan),
    }

    def reset(self, config: SokobanConfig, *, split: str, seed: int) -> SokobanGame:
        """Draw goals, and pull the boxes off them at random until none is on its goal."""
        for number in range(1 << 16):
            rng = random.Random(base.draw("sokoban", split, seed, number, below=1 << 62))
            cells = [(row, column) for row in range(config.size) for column in range(config.size)]
            order = sorted(cells, key=lambda _: rng.random())
            goals, player = frozenset(order[: config.boxes]), order[config.boxes]
            place = Place(player, goals)
            for _ in range(config.pulls):
                place = _pulled(place, tuple(MOVES)[int(rng.random() * 4)], config.size)
            if not place.boxes & goals:
                break
        return SokobanGame(config, goals, place)


def _there(cell: Cell, action: str, steps: int = 1) -> Cell:
    down, right = MOVES[action]
    return cell[0] + steps * down, cell[1] + steps * right


def _is_free(cell: Cell, boxes: frozenset[Cell], size: int) -> bool:
    return 0 <= cell[0] < size and 0 <= cell[1] < size and cell not in boxes


def _pushed(place: Place, action: str, size: int) -> Place:
    player, boxes = place
    there = _there(player, action)
    if there in boxes:
        beyond = _there(player, action, 2)
        if not _is_free(beyond, boxes, size):
            return place
        return Place(there, boxes - {there} | {beyond})
    return Place(there, boxes) if _is_free(there, boxes, size) else place


def _pulled(place: Place, action: str, size: int) -> Place:
    """Step back in a direction and take along a box that is on the other side: a push undone."""
    player, boxes = place
    there, behind = _there(player, action), _there(player, action, -1)
    if not _is_free(there, boxes, size):
        return place
    return Place(there, boxes - {behind} | {player} if behind in boxes else boxes)


def _plan(rows: tuple[str, ...]) -> list[str] | None:
    size = len(rows) - 2
    signs = {
        (row, column): rows[row + 1][column + 1] for row in range(size) for column in range(size)
    }
    boxes = frozenset(cell for cell, sign in signs.items() if sign in "$*")
    goals = frozenset(cell for cell, sign in signs.items() if sign in ".*+")
    [player] = [cell for cell, sign in signs.items() if sign in "@+"]

    def after(here: Place) -> Iterator[tuple[str, Place]]:
        return ((action, _pushed(here, action, size)) for action in MOVES)

    return shortest(Place(player, boxes), after, lambda here: here.boxes == goals)


SOKOBAN = Sokoban()
