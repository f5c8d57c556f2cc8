"""The input of a measurement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings

if TYPE_CHECKING:
    from bench.engine_bench import EngineBench

FULL_PAIRS = 7
"""Pairs of runs of each ratio."""
QUICK_PAIRS = 3
"""The same with --quick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run of the benchmarks."""

    settings: Settings
    """Settings of server and trainer."""
    config: EnvConfig
    """The board that is played."""
    quick: bool
    """Fewer pairs of runs."""
    say: Callable[[str], None]
    """Prints progress."""
    engine: "EngineBench | None" = None
    """The running engine."""
    no_engine: str = ""
    """Why there is no engine."""

    @property
    def pairs(self) -> int:
        """Pairs that are kept, after one warm-up pair."""
        return QUICK_PAIRS if self.quick else FULL_PAIRS

    @property
    def needed_engine(self) -> "EngineBench":
        """The engine; the catalogue calls measurements that need it only if there is one.

        Raises:
            SettingsError: There is no engine.
        """
        if self.engine is None:
            raise SettingsError(f"no engine: {self.no_engine}")
        return self.engine


def board_of(settings: Settings) -> EnvConfig:
    """Return the board that HANABI_PRESET names, else the board of the dataset's first row.

    Raises:
        SettingsError: The board cannot be played.
    """
    from hanabi_grpo.rollout.datasets import training_rows

    return EnvConfig.parse(training_rows(settings)[0].env_config)
