"""What the games on a grid have in common: moves, words, and the shortest way as a reference."""

import functools
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from hanabi_grpo.envs import base
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.replies import answer_lines, last_choice

MOVES: Mapping[str, tuple[int, int]] = {
    "Left": (0, -1),
    "Down": (1, 0),
    "Right": (0, 1),
    "Up": (-1, 0),
}
"""Rows grow downward, columns to the right. In gymnasium's order."""
SEPARATOR = "||"
"""Between the actions of one reply, as in ROLL."""


class MazeConfig(StateConfig):
    """What both games can be told."""

    max_moves: int = 20
    """Moves after which an episode ends."""
    actions_per_reply: int = 1
    """Actions that one reply may hold, with || between them."""


C = TypeVar("C", bound=MazeConfig)


class MazeView(NamedTuple):
    """What a script is shown: everything but the slips to come."""

    rows: tuple[str, ...]
    """The map as text, one character a cell."""
    num_moves: int


class MazeGame(base.Game):
    """One player who moves until the game is won, lost or out of steps."""

    config: MazeConfig
    num_moves: int = 0

    def won(self) -> bool:
        """Return whether the goal is reached."""
        raise NotImplementedError

    def lost(self) -> bool:
        """Return whether it can no longer be reached."""
        return False

    def move(self, action: str) -> None:
        """Make one move."""
        raise NotImplementedError

    def rows(self) -> tuple[str, ...]:
        """Return the map as it is now."""
        raise NotImplementedError

    def to_act(self) -> tuple[int, ...]:
        return () if self.won() or self.lost() or self.num_moves >= self.config.max_moves else (0,)

    def state_message(self, player: int) -> str:
        """Return the map; in the compact style a word a cell, which is the cell's place and what is
        there.
        """
        if self.config.style == "full":
            return "\n".join(self.rows())
        cells = (
            (row, column, cell)
            for row, text in enumerate(self.rows())
            for column, cell in enumerate(text)
        )
        return " ".join(f"{row}{column}{cell}" for row, column, cell in cells)

    def view(self, player: int) -> MazeView:
        return MazeView(self.rows(), self.num_moves)

    def legal(self, player: int) -> tuple[str, ...] | None:
        """Return the four directions; any text where a reply may hold several."""
        if self.config.actions_per_reply > 1 and self.to_act():
            return None
        return tuple(MOVES) if player in self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return the direction, or directions, on the last line that holds nothing else."""
        if self.config.actions_per_reply == 1:
            return last_choice(reply, MOVES)
        for line in answer_lines(reply):
            words = [last_choice(word, MOVES) for word in line.split(SEPARATOR)]
            if all(words) and len(words) <= self.config.actions_per_reply:
                return SEPARATOR.join(filter(None, words))
        return None

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Move; reaching the goal pays 1, the part `goal`."""
        for action in actions[0].split(SEPARATOR):
            if self.to_act():
                self.move(action)
                self.num_moves += 1
        return [{"goal": 1.0} if self.won() else {}]

    def result(self) -> Mapping[str, float]:
        return {"success": float(self.won()), "moves": float(self.num_moves)}


class Maze(base.Environment[C], Generic[C]):
    """An environment of one player whose score is the share of games in which the goal is
    reached.
    """

    text: str
    teachers = ("bfs",)

    def spec(self, config: C) -> base.EnvSpec:
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, 1, self.text, config.model_dump(exclude={"preset"})),
            num_players=1,
            roles=("player",),
            payoff="team",
            max_turns=config.max_moves,
            return_range=(0.0, 1.0),
            score="success",
            max_score=1.0,
        )

    def system(self, config: C, player: int) -> str:
        if config.style == "compact":
            return ""
        several = (
            f" Up to {config.actions_per_reply} moves may stand there, with {SEPARATOR} "
            "between them."
        )
        last = "End your reply with Left, Down, Right or Up on a line of its own."
        return (
            f"{self.text} You have {config.max_moves} "
            f"moves.\n{last}{several * (config.actions_per_reply > 1)}"
        )

    def start_id(self, config: C, *, split: str, seed: int) -> str:
        return "/".join(self.reset(config, split=split, seed=seed).view(0).rows)

    def picture(self, config: C, game: MazeGame) -> str:
        return "\n".join(game.view(0).rows)


def random_walk() -> base.Script:
    """Return the script that moves in a random direction."""
    return base.Script("random", lambda seen, rng: rng.choice(tuple(MOVES)))


def shortest(
    start: Hashable,
    after: Callable[[Any], Iterable[tuple[str, Hashable]]],
    is_goal: Callable[[Any], bool],
) -> list[str] | None:
    """Return the fewest moves from a position to a goal, by breadth-first search; None: there is no
    way.
    """
    came: dict[Hashable, tuple[Hashable, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        if is_goal(here):
            moves = []
            while (step := came[here]) is not None:
                here, move = step
                moves.append(move)
            return moves[::-1]
        for move, there in after(here):
            if there not in came:
                came[there] = (here, move)
                queue.append(there)
    return None


def bfs(plan: Callable[[tuple[str, ...]], list[str] | None]) -> base.Script:
    """Return the script that takes the first move of a shortest way, and any move where there is
    none.
    """
    known = functools.lru_cache(maxsize=1 << 16)(plan)

    def choose(seen: base.Observation, rng: random.Random) -> str:
        return (known(seen.view().rows) or [rng.choice(tuple(MOVES))])[0]

    return base.Script("bfs", choose)
