"""What the games on a grid have in common: moves, prompts, and the shortest way as a reference."""

import functools
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.people import Scene, plain_choices, without_format
from hanabi_grpo.envs.replies import MAX_LINE_CHARS, answer_lines, last_choice

MOVES: Mapping[str, tuple[int, int]] = {
    "Left": (0, -1),
    "Down": (1, 0),
    "Right": (0, 1),
    "Up": (-1, 0),
}
"""Per action the change of (row, column). Rows grow downward, columns to the right.

The order is gymnasium's."""
DIRECTIONS = tuple(MOVES)
"""Names of the four actions, in that order; neighbours in it are at right angles."""
SEPARATOR = "||"
"""Between the actions of one reply, as in ROLL."""
MOST_MOVES = 10_000
"""Of an episode, all of whose slips are drawn at its start."""
_ACTION_CHARS = 12
"""Of an action in a reply of several, with what separates it from the next one."""
_RULES_VERSION = 1
"""Part of the environment's hash; goes up when the rules change."""
_PLANS_REMEMBERED = 1 << 16
"""Positions whose shortest way one script keeps in memory."""


class MazeConfig(StateConfig):
    """Settings of both games."""

    max_moves: int = Field(default=20, ge=1, le=MOST_MOVES)
    """Moves after which an episode ends."""
    actions_per_reply: int = Field(default=1, ge=1, le=MOST_MOVES)
    """Actions that one reply may hold, with || between them."""


C = TypeVar("C", bound=MazeConfig)


class MazeView(NamedTuple):
    """What a script is shown: everything but the slips to come."""

    rows: tuple[str, ...]
    """The map as text, one character per cell."""
    num_moves: int
    """Moves made so far."""


class MazeGame(base.Game):
    """One player who moves until the game is won, lost or out of moves."""

    config: MazeConfig
    legend: str
    """What the signs of the map mean."""
    num_moves: int = 0
    """Moves made so far."""

    def won(self) -> bool:
        """Return whether the goal is reached."""
        raise NotImplementedError

    def lost(self) -> bool:
        """Return whether the goal can no longer be reached."""
        return False

    def move(self, action: str) -> None:
        """Make one move."""
        raise NotImplementedError

    def rows(self) -> tuple[str, ...]:
        """Return the map as it is now."""
        raise NotImplementedError

    def to_act(self) -> tuple[int, ...]:
        if self.won() or self.lost():
            return ()
        if self.num_moves >= self.config.max_moves:
            return ()
        return (0,)

    def state_message(self, player: int) -> str:
        """Return the map.

        In the compact style there is one word per cell: its row, its column and what is there,
        e.g. "00P 01F 10H 11G".
        """
        if self.config.style == "full":
            return "\n".join(self.rows())
        words = []
        for row, text in enumerate(self.rows()):
            for column, cell in enumerate(text):
                words.append(f"{row}{column}{cell}")
        return " ".join(words)

    def scene(self, player: int) -> Scene:
        moves = f"Moves {self.num_moves} of {self.config.max_moves}"
        rows = [" ".join(row) for row in self.rows()]
        return Scene(
            table="\n".join([*rows, moves]),
            legend=self.legend,
            choices=plain_choices(self.legal(player)),
        )

    def view(self, player: int) -> MazeView:
        return MazeView(self.rows(), self.num_moves)

    def legal(self, player: int) -> tuple[str, ...] | None:
        """Return the four directions; None (any text) where a reply may hold several actions."""
        if self.config.actions_per_reply > 1 and self.to_act():
            return None
        if player in self.to_act():
            return DIRECTIONS
        return ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return the direction, or directions, on the last line that holds nothing else."""
        if self.config.actions_per_reply == 1:
            return last_choice(reply, MOVES)
        longest = max(MAX_LINE_CHARS, self.config.actions_per_reply * _ACTION_CHARS)
        for line in answer_lines(reply, longest):
            parts = line.split(SEPARATOR)
            directions = [last_choice(part, MOVES) for part in parts]
            named = [direction for direction in directions if direction is not None]
            if len(named) == len(parts) <= self.config.actions_per_reply:
                return SEPARATOR.join(named)
        return None

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Move; reaching the goal pays 1, the part `goal`. A skipped turn loses a move."""
        for action in actions[0].split(SEPARATOR):
            if self.to_act():
                if action != base.SKIP:
                    self.move(action)
                self.num_moves += 1
        if self.won():
            return [{"goal": 1.0}]
        return [{}]

    def result(self) -> Mapping[str, float]:
        return {"success": float(self.won()), "moves": float(self.num_moves)}


class Maze(base.Environment[C], Generic[C]):
    """An environment of one player whose score is the share of games that reach the goal."""

    text: str
    """The rules, first part of the system message."""
    teachers = ("bfs",)

    def spec(self, config: C) -> base.EnvSpec:
        fields = config.model_dump(exclude={"preset"})
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, _RULES_VERSION, self.text, fields),
            num_players=1,
            roles=("player",),
            payoff="team",
            max_turns=config.max_moves,
            return_range=(0.0, 1.0),
            # Where a reply may hold several actions, those that are legal are too many to list.
            bad_reply="random_legal" if config.actions_per_reply == 1 else "skip",
            score="success",
            max_score=1.0,
        )

    def system(self, config: C, player: int) -> str:
        if config.style == "compact":
            return ""
        message = (
            f"{self.text} You have {config.max_moves} moves.\n"
            "End your reply with Left, Down, Right or Up on a line of its own."
        )
        if config.actions_per_reply > 1:
            message += (
                f" Up to {config.actions_per_reply} moves may stand there, with {SEPARATOR} "
                "between them."
            )
        return message

    def person_rules(self, config: C, player: int) -> str:
        readable = config.model_copy(update={"style": "full"})
        return without_format(self.system(readable, player))

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        game = self.reset(config, split=split, seed=seed)
        return "/".join(game.view(0).rows)

    def picture(self, config: C, game: MazeGame) -> str:
        return "\n".join(game.view(0).rows)


def _any_direction(rng: random.Random) -> str:
    return rng.choice(DIRECTIONS)


def random_walk() -> base.Script:
    """Return the script that moves in a random direction."""
    return base.MixedScript(
        "random", lambda seen, rng: _any_direction(rng), lambda seen: base.even_chances(DIRECTIONS)
    )


def shortest(
    start: Hashable,
    after: Callable[[Any], Iterable[tuple[str, Hashable]]],
    is_goal: Callable[[Any], bool],
) -> list[str] | None:
    """Return the fewest moves from a position to a goal, by breadth-first search.

    Args:
        start: The position to start from.
        after: Yields for a position each possible move with the position that it leads to.
        is_goal: Whether a position is a goal.

    Returns:
        The moves in order, [] when the start is a goal, None when no way leads to one.
    """
    reached_by: dict[Hashable, tuple[Hashable, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        position = queue.popleft()
        if is_goal(position):
            return _moves_to(position, reached_by)
        for move, neighbour in after(position):
            if neighbour not in reached_by:
                reached_by[neighbour] = (position, move)
                queue.append(neighbour)
    return None


def _moves_to(
    goal: Hashable, reached_by: Mapping[Hashable, tuple[Hashable, str] | None]
) -> list[str]:
    """Walk back from the goal to the start and return the moves in the order they are made."""
    moves = []
    step = reached_by[goal]
    while step is not None:
        position, move = step
        moves.append(move)
        step = reached_by[position]
    moves.reverse()
    return moves


def bfs(plan: Callable[[tuple[str, ...]], list[str] | None]) -> base.Script:
    """Return the script that takes the first move of a shortest way, any move where none exists.

    Args:
        plan: Returns the moves of a shortest way for a map, see `MazeView.rows`.
    """
    remembered_plan = functools.lru_cache(maxsize=_PLANS_REMEMBERED)(plan)

    def choose(seen: base.Observation, rng: random.Random) -> str:
        moves = remembered_plan(seen.view().rows)
        if moves:
            return moves[0]
        return _any_direction(rng)

    def chances(seen: base.Observation) -> Mapping[str, float]:
        moves = remembered_plan(seen.view().rows)
        return base.even_chances(moves[:1] if moves else DIRECTIONS)

    return base.MixedScript("bfs", choose, chances)
