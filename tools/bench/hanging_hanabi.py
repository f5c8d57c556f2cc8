"""Hanabi as an environment of another package, in which some episodes never end.

Only the benchmark registers it; worker processes find it through PYTHONPATH.
"""

import os
import random
import time
from collections.abc import Mapping, Sequence

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import Hanabi, HanabiGame
from hanabi_grpo.envs.hanabi.rules.deals import shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game

HANGING_SHARE = "BENCH_HANGING_SHARE"
"""Environment variable: the share of episodes whose second move never returns."""


class HangingGame(HanabiGame):
    """A game whose second move randomly never returns, as in a faulty simulator."""

    _num_moves = 0

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Make a move, or never return."""
        self._num_moves += 1
        if self._num_moves == 2 and random.random() < float(os.environ.get(HANGING_SHARE, "0")):
            while True:
                time.sleep(1000)
        return super().step(actions)


class HangingHanabi(Hanabi):
    """The games of Hanabi under another name."""

    name = "hanging_hanabi"

    def may_block(self, config: EnvConfig) -> bool:
        """Return True, which is the purpose of this environment."""
        return True

    def reset(self, config: EnvConfig, *, split: str, seed: int) -> HanabiGame:
        """Deal as Hanabi does."""
        board = config.spec()
        return HangingGame(config, Game(board, shuffled_deck(board, split, seed)))


HANGING_HANABI = HangingHanabi()
