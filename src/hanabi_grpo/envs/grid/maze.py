"""Common code of the grid games: moves, prompts, and the shortest path as a reference."""

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
"""Change of (row, column) per action. Rows increase downward, columns to the right.

The order is the same as in Gymnasium."""
DIRECTIONS = tuple(MOVES)
"""Names of the four actions, in that order; neighbors in it are at right angles."""
SEPARATOR = "||"
"""Separator between the actions of one reply, as in ROLL."""
MOST_MOVES = 10_000
"""Maximum moves of an episode, because all its slips are drawn at the start."""
_ACTION_CHARS = 12
"""Characters per action in a reply with several, including the separator."""
_RULES_VERSION = 1
"""Part of the environment's hash; increased when the rules change."""
_PLANS_REMEMBERED = 1 << 16
"""Number of positions whose shortest path a script caches."""


class MazeConfig(StateConfig):
    """Settings of both games."""

    max_moves: int = Field(default=20, ge=1, le=MOST_MOVES)
    """Maximum number of moves in an episode."""
    actions_per_reply: int = Field(default=1, ge=1, le=MOST_MOVES)
    """Maximum number of actions in one reply, separated by ||."""


C = TypeVar("C", bound=MazeConfig)


class MazeView(NamedTuple):
    """What a script is shown: everything except future slips."""

    rows: tuple[str, ...]
    """The map as text, one character per cell."""
    num_moves: int
    """Number of moves so far."""


class MazeGame(base.Game):
    """One player moves until the game is won or lost, or no moves are left."""

    config: MazeConfig
    legend: str
    """Meaning of the signs on the map."""
    num_moves: int = 0
    """Number of moves so far."""

    def won(self) -> bool:
        """Return whether the goal has been reached."""
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

        In the compact style, there is one word per cell: its row, its column and its sign, e.g.
        "00P 01F 10H 11G".
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
        """Return the four directions; None (any text) if a reply may contain several actions."""
        if self.config.actions_per_reply > 1 and self.to_act():
            return None
        if player in self.to_act():
            return DIRECTIONS
        return ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return the direction or directions on the last line that contains nothing else."""
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
        """Move; reaching the goal pays 1 as the part `goal`. A skipped turn costs a move."""
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
    """A one-player environment whose score is the share of games that reach the goal."""

    text: str
    """The rules, first part of the system message."""
    teachers = ("bfs",)

    def spec(self, config: C) -> base.EnvSpec:
        fields = config.rule_fields()
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, _RULES_VERSION, self.text, fields),
            num_players=1,
            roles=("player",),
            payoff="team",
            max_turns=config.max_moves,
            return_range=(0.0, 1.0),
            # If a reply may contain several actions, the legal actions are too many to list.
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
    most: int | None = None,
) -> list[str] | None:
    """Return the shortest path from a position to a goal, by breadth-first search.

    Args:
        start: The position to start from.
        after: Yields each possible move from a position with the position that it leads to.
        is_goal: Whether a position is a goal.
        most: Maximum number of positions to visit; None: all.

    Returns:
        The moves in order, [] if the start is a goal, or None if no goal can be reached, or not
        within that number.
    """
    reached_by: dict[Hashable, tuple[Hashable, str] | None] = {start: None}
    queue = deque([start])
    while queue and (most is None or len(reached_by) <= most):
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
    """Trace back from the goal to the start and return the moves in order."""
    moves = []
    step = reached_by[goal]
    while step is not None:
        position, move = step
        moves.append(move)
        step = reached_by[position]
    moves.reverse()
    return moves


def bfs(plan: Callable[[tuple[str, ...]], list[str] | None]) -> base.Script:
    """Return the script that follows a shortest path, and moves randomly if there is none.

    Args:
        plan: Returns the moves of a shortest path for a map; see `MazeView.rows`.
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
