"""Warm starts of a whole model on `laptop`, whose joined words share parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft.run import WarmStart, Watcher
from hanabi_grpo.sft.sources import Sources
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model

JOINED = {"observation": "compact", "deductions": "joined", "memory": "turn", "legal_moves": False}
LAPTOP = Setup(HANABI, EnvConfig(preset="laptop", **JOINED))


def joined_model(folder: Path) -> Path:
    """Make an untaught model that reads joined words, in a new folder, which is returned."""
    recipe = Recipe.of("hanabi", presets=("laptop",), deductions="joined", steps=1, num_games=2)
    return build_tiny_model(folder, recipe)


def make_start(
    base: Path,
    out: Path,
    *,
    games: int = 40,
    steps: int = 4,
    batch: int = 8,
    resume: bool = False,
) -> WarmStart:
    """Return a warm start from games of the hint bot.

    Args:
        base: From `joined_model`.
        out: Folder of the result.
        games: Of the hint bot with itself.
        steps: Updates.
        batch: Turns of an update.
        resume: Continue what is in `out`.
    """
    return WarmStart(
        settings=Settings(model=str(base), seed=7),
        setup=LAPTOP,
        sources=Sources(lineups=("hint-bot",), num_tasks=games, noise=0.2),
        out=out,
        steps=steps,
        batch=batch,
        learning_rate=3e-3,
        shared=False,
        full=True,
        every_start=False,
        resume=resume,
    )


def run(start: WarmStart, *, calls: int | None = None) -> Mapping[str, Any]:
    """Run a warm start; stop it when it has asked so many times.

    Returns:
        Held-out figures after the last step.
    """
    remaining = iter(range(calls)) if calls is not None else None

    def should_stop() -> bool:
        return remaining is not None and next(remaining, None) is None

    rows = start.run(Watcher(say=print, show=lambda *progress: None, should_stop=should_stop))
    _, figures = rows[-1]
    return figures
