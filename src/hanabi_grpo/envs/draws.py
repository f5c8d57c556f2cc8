"""Exact probabilities of the results of a randomized function, by enumerating all its draws."""

import math
import random
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_COIN_SIDES = 2


class _FollowedBranch(random.Random):
    """A generator with predetermined draws; after the last, it takes the first possible result."""

    def __new__(cls, given: tuple[int, ...]) -> "_FollowedBranch":
        return super().__new__(cls)

    def __init__(self, given: tuple[int, ...]) -> None:
        super().__init__()
        self._given = given
        self.taken: list[int] = []
        """Index of the result of each draw."""
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
        """Probability of these draws."""
        return 1.0 / math.prod(self.widths)

    def choice(self, seq: Any) -> Any:
        return seq[self._take(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if stop is not None or step != 1:
            raise NotImplementedError("rules may only draw with randrange(n)")
        return self._take(start)

    def random(self) -> float:
        # Rules use it as a fair coin: below one half, or not.
        return self._take(_COIN_SIDES) / _COIN_SIDES

    def getrandbits(self, k: int, /) -> int:
        raise NotImplementedError("rules may only draw with choice, randrange and random")


def chances_of(choose: Callable[[random.Random], _Result]) -> dict[_Result, float]:
    """Return the probability of each result by enumerating every outcome of every draw.

    Args:
        choose: Returns a result; it may only draw with `choice`, `randrange(n)` and
            `random() < 0.5`.

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
