"""`hanabi-grpo tiny-model`: make the model of the laptop demo."""

from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.settings import load_settings
from hanabi_grpo.tiny_model import build_tiny_model


def tiny_model(out: Path, *, presets: Sequence[str], seed: int | None, steps: int, force: bool) -> None:
    """Make the tiny model; what is None or empty comes from SEED, HANABI_PRESET and the board of the demo.

    Args:
        out: Folder to make.
        presets: Boards that it is for.
        seed: Of games, initial weights and order.
        steps: Steps of the warm start.
        force: Build even if the folder is complete.
    """
    settings = load_settings().settings
    build_tiny_model(
        out,
        preset=tuple(presets) or settings.preset or "laptop",
        seed=settings.seed if seed is None else seed,
        steps=steps,
        force=force,
        players=settings.players,
        legal_moves=settings.legal_moves,
    )
