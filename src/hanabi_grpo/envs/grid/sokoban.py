"""Sokoban: push every box onto a goal.

Maps are made by pulling boxes off the goals, so each can be solved. Signs as levels are usually
written: # wall, . goal, $ box, * box on a goal, @ player, + player on a goal, - floor.
"""

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Self

from pydantic import Field, model_validator

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
from hanabi_grpo.errors import SettingsError

WALL = "#"
FLOOR = "-"
GOAL = "."
BOX = "$"
BOX_ON_GOAL = "*"
PLAYER = "@"
PLAYER_ON_GOAL = "+"

_MOST_DRAWS = 1 << 16
"""Maps that are drawn at most until one is not solved."""
_MOST_WORK = 500_000
"""Cells and pulls of the maps that are drawn at most until no box is on a goal in one: a second."""
_STARTS_REMEMBERED = 1 << 12
_NUM_SEEDS = 1 << 62
"""Seeds from which the generator of a map is drawn."""

Cell = tuple[int, int]
"""Row and column within the walls, from 0 at the upper left."""


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
        if self.pulls < self.boxes:
            raise SettingsError(
                f"pulls={self.pulls}: must be at least boxes={self.boxes}, one to pull each box "
                "off its goal."
            )
        return self


class Position(NamedTuple):
    """Where everything is that moves."""

    player: Cell
    boxes: frozenset[Cell]


class SokobanGame(MazeGame):
    """A room of `size` by `size` cells; all that is not in it is wall."""

    legend = "# wall, . goal, $ box, * box on a goal, @ you, + you on a goal"

    def __init__(self, config: SokobanConfig, goals: frozenset[Cell], position: Position) -> None:
        self.config = config
        self.size = config.size
        self.goals = goals
        self.position = position

    def won(self) -> bool:
        return self.position.boxes == self.goals

    def move(self, action: str) -> None:
        self.position = _push(self.position, action, self.size)

    def rows(self) -> tuple[str, ...]:
        wall = WALL * (self.size + 2)
        rows = [wall]
        for row in range(self.size):
            cells = [self._sign((row, column)) for column in range(self.size)]
            rows.append(WALL + "".join(cells) + WALL)
        rows.append(wall)
        return tuple(rows)

    def _sign(self, cell: Cell) -> str:
        is_goal = cell in self.goals
        if cell == self.position.player:
            return PLAYER_ON_GOAL if is_goal else PLAYER
        if cell in self.position.boxes:
            return BOX_ON_GOAL if is_goal else BOX
        return GOAL if is_goal else FLOOR


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
        "for a goal, $ for a box, * for a box on a goal, @ for you and + for you on a goal. You "
        "push a box by moving against it; you cannot pull, nor push two boxes or a box into a wall."
    )
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": random_walk,
        "bfs": lambda: bfs(_plan),
    }

    def reset(self, config: SokobanConfig, *, split: str, seed: int) -> SokobanGame:
        """Draw goals, and pull the boxes off them at random until none is on a goal.

        Where that hardly ever comes about, it is the map with the fewest boxes on goals.
        """
        goals, position = _draw_open_start(config.size, config.boxes, config.pulls, split, seed)
        return SokobanGame(config, goals, position)


@functools.lru_cache(maxsize=_STARTS_REMEMBERED)
def _draw_open_start(
    size: int, boxes: int, pulls: int, split: str, seed: int
) -> tuple[frozenset[Cell], Position]:
    """Return the goals, and where player and boxes are; it is never solved.

    See `SokobanConfig` for the numbers.
    """
    num_tried = _MOST_WORK // (size**2 + pulls)
    fewest_on_goals = boxes
    for number in range(_MOST_DRAWS):
        rng = random.Random(base.draw("sokoban", split, seed, number, below=_NUM_SEEDS))
        goals, position = _draw_start(size, boxes, pulls, rng)
        num_on_goals = len(position.boxes & goals)
        if num_on_goals < fewest_on_goals:
            fewest_on_goals = num_on_goals
            best = goals, position
        is_tried_enough = number >= num_tried and fewest_on_goals < boxes
        if fewest_on_goals == 0 or is_tried_enough:
            break
    return best


def _draw_start(
    size: int, boxes: int, pulls: int, rng: random.Random
) -> tuple[frozenset[Cell], Position]:
    """Return the goals and where player and boxes are after random pulls.

    Only `rng.random()` is used, whose numbers no version of Python changes.
    """
    cells = [(row, column) for row in range(size) for column in range(size)]
    cells.sort(key=lambda cell: rng.random())
    goals = frozenset(cells[:boxes])
    position = Position(player=cells[boxes], boxes=goals)
    for _ in range(pulls):
        action = DIRECTIONS[int(rng.random() * len(DIRECTIONS))]
        position = _pull(position, action, size)
    return goals, position


def _neighbour(cell: Cell, action: str, steps: int = 1) -> Cell:
    """Return the cell so many steps away, which may lie in the wall."""
    row, column = cell
    down, right = MOVES[action]
    return row + steps * down, column + steps * right


def _is_free(cell: Cell, boxes: frozenset[Cell], size: int) -> bool:
    row, column = cell
    is_inside = 0 <= row < size and 0 <= column < size
    return is_inside and cell not in boxes


def _push(position: Position, action: str, size: int) -> Position:
    """Make one move by the rules; a move that is blocked changes nothing."""
    boxes = position.boxes
    target = _neighbour(position.player, action)
    if target in boxes:
        beyond = _neighbour(position.player, action, steps=2)
        if not _is_free(beyond, boxes, size):
            return position
        return Position(target, boxes - {target} | {beyond})
    if not _is_free(target, boxes, size):
        return position
    return Position(target, boxes)


def _pull(position: Position, action: str, size: int) -> Position:
    """Step back in a direction and take along a box that is on the other side: undo a push."""
    player, boxes = position
    target = _neighbour(player, action)
    behind = _neighbour(player, action, steps=-1)
    if not _is_free(target, boxes, size):
        return position
    if behind in boxes:
        boxes = boxes - {behind} | {player}
    return Position(target, boxes)


def _plan(rows: tuple[str, ...]) -> list[str] | None:
    """Return the shortest solution of a map."""
    size = len(rows) - 2
    boxes = set()
    goals = set()
    for row in range(size):
        for column in range(size):
            cell = (row, column)
            sign = rows[row + 1][column + 1]
            if sign in (BOX, BOX_ON_GOAL):
                boxes.add(cell)
            if sign in (GOAL, BOX_ON_GOAL, PLAYER_ON_GOAL):
                goals.add(cell)
            if sign in (PLAYER, PLAYER_ON_GOAL):
                player = cell

    def after(position: Position) -> Iterator[tuple[str, Position]]:
        for action in DIRECTIONS:
            yield action, _push(position, action, size)

    return shortest(
        Position(player, frozenset(boxes)), after, lambda position: position.boxes == goals
    )


SOKOBAN = Sokoban()
