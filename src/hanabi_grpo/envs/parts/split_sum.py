"""A split sum: one seat reads one half and sends one word, the other seat answers the sum.

With numbers from 0 to `highest` in each half and w words, the best pair is right for
min(1, w / (highest + 1)) of all sums. A seat or vote that hears nothing is right for
1 / (highest + 1): given one half, all possible sums are equally likely.
"""

import math
import random
from collections.abc import Callable, Mapping

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.parts.puzzle import (
    BABBLE,
    SPEAKER,
    Babble,
    Parts,
    Puzzle,
    PuzzleConfig,
    PuzzleGame,
    code_script,
)

VOCABULARY = (
    *("alfa", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"),
    *("india", "juliett", "kilo", "lima", "mike", "november", "oscar", "papa"),
)
"""Words that may be sent; they have no meaning until the two seats give them one."""
ANSWERER = 1
"""The seat that answers."""


class SplitSumConfig(PuzzleConfig):
    """Settings of a split sum."""

    highest: int = Field(default=3, ge=1, le=15)
    """Largest number in each half of a split sum; the smallest is 0."""
    words: int = Field(default=4, ge=1, le=len(VOCABULARY))
    """Number of words from which the first seat may send one."""


class SplitSumGame(PuzzleGame[SplitSumConfig]):
    """`numbers` are the two halves."""

    def num_seats(self) -> int:
        return 2

    def seen(self, player: int) -> tuple[int, ...]:
        return (self.numbers[player],)

    def words(self, player: int) -> tuple[str, ...]:
        if player == SPEAKER:
            return VOCABULARY[: self.config.words]
        return tuple(map(str, range(2 * self.config.highest + 1)))

    def answers(self) -> Mapping[int, str]:
        return {ANSWERER: str(sum(self.numbers))}

    def redrawn(self, player: int, rng: random.Random) -> tuple[int, ...]:
        numbers = list(self.numbers)
        numbers[1 - player] = rng.randint(0, self.config.highest)
        return tuple(numbers)

    def text(self, player: int, view: Parts) -> str:
        [number] = view.seen
        if player == SPEAKER:
            return f"Your half of the sum is {number}. Which word?"
        heard = f"The other player said {view.heard[0]}." if view.heard else "Nothing was said yet."
        return f"Your half of the sum is {number}. {heard} What is the whole sum?"


def _agreed_code(player: int, view: Parts, legal: tuple[str, ...]) -> str:
    """Return the word whose index is the speaker's half, or the sum that this word implies."""
    [number] = view.seen
    if player == SPEAKER:
        return legal[number % len(legal)]
    return str(number + VOCABULARY.index(view.heard[0]))


class SplitSum(Puzzle[SplitSumConfig]):
    """Two seats."""

    name = "split_sum"
    Config = SplitSumConfig
    Game = SplitSumGame
    presets: Mapping[str, SplitSumConfig] = {
        "split_sum": SplitSumConfig(preset="split_sum"),
        "split_sum-2": SplitSumConfig(preset="split_sum-2", highest=1, words=2),
    }
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        BABBLE: Babble,
        "code": lambda: code_script("code", _agreed_code),
    }

    def num_seats(self, config: SplitSumConfig) -> int:
        return 2

    def roles(self, config: SplitSumConfig) -> tuple[str, ...]:
        return ("speaker", "answerer")

    def limits(self, config: SplitSumConfig) -> tuple[int, ...]:
        return (config.highest + 1,) * 2

    def ceiling(self, config: SplitSumConfig) -> float:
        """Return min(1, words / values of a half).

        The words divide the values of the first half into as many classes as there are words. In
        each class, at most one value is guessed right, whatever the other half is.
        """
        return min(1.0, config.words / (config.highest + 1))

    def ceiling_without_words(self, config: SplitSumConfig) -> float:
        return 1 / (config.highest + 1)

    def bits_needed(self, config: SplitSumConfig) -> float:
        return math.log2(config.highest + 1)

    def system(self, config: SplitSumConfig, player: int) -> str:
        if config.style == "compact":
            return ""
        rules = (
            f"Two players add two numbers from 0 to {config.highest}. Each reads one of them, its "
            "half of the sum."
        )
        words = ", ".join(VOCABULARY[: config.words])
        if player == SPEAKER:
            return (
                f"{rules} You pass one word to the other player, who then answers for both. What a "
                "word means is for the two of you to find out. End your reply with one of these "
                f"words on a line of its own: {words}."
            )
        return (
            f"{rules} The other player passes one word to you: {words}. What a word means is for "
            "the two of you to find out. Then you answer the whole sum. End your reply with the "
            "sum on a line of its own."
        )


SPLIT_SUM = SplitSum()
