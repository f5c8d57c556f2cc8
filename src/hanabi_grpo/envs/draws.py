"""How likely each result of a function is that draws at random, exactly: every draw is followed."""

import math
import random
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_COIN_SIDES = 2


class _FollowedBranch(random.Random):
    """A generator whose draws are given, the first possible one where nothing is given any more."""

    def __new__(cls, given: tuple[int, ...]) -> "_FollowedBranch":
        return super().__new__(cls)

    def __init__(self, given: tuple[int, ...]) -> None:
        super().__init__()
        self._given = given
        self.taken: list[int] = []
        """Number of each draw's result."""
        self.widths: list[int] = []
        """Number of possible results of each draw."""

    def _take(self, width: int) -> int:
        position = len(self.taken)
        number = self._given[position] if position < len(self._given) else 0
        self.taken.append(number)
        self.widths.append(width)
        return number

    @property
    def chance(self) -> float:
        """How likely these draws are."""
        return 1.0 / math.prod(self.widths)

    def choice(self, seq: Any) -> Any:
        return seq[self._take(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if stop is not None or step != 1:
            raise NotImplementedError("rules draw by randrange(n) alone")
        return self._take(start)

    def random(self) -> float:
        # Rules flip a fair coin with it: below one half, or not.
        return self._take(_COIN_SIDES) / _COIN_SIDES

    def getrandbits(self, k: int, /) -> int:
        raise NotImplementedError("rules draw by choice, randrange and random alone")


def chances_of(choose: Callable[[random.Random], _Result]) -> dict[_Result, float]:
    """Return how likely each result is, by following every result of every draw.

    Args:
        choose: Returns a result, and draws by `choice`, `randrange(n)` and `random() < 0.5` alone.

    Example:
        chances_of(lambda rng: rng.choice("aab")) == {"a": 2 / 3, "b": 1 / 3}
    """
    chances: dict[_Result, float] = {}
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        given = waiting.pop()
        branch = _FollowedBranch(given)
        result = choose(branch)
        chances[result] = chances.get(result, 0.0) + branch.chance
        for position in range(len(given), len(branch.taken)):
            before = tuple(branch.taken[:position])
            for number in range(1, branch.widths[position]):
                waiting.append((*before, number))
    return chances
