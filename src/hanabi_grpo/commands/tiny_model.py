"""`hanabi-grpo tiny-model`: make the model of the laptop demo."""

from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.board import LAPTOP, tiny_model_folder
from hanabi_grpo.tiny_model import build_tiny_model


def tiny_model(
    out: Path | None, *, presets: Sequence[str], players: int | None, seed: int | None, steps: int, force: bool
) -> None:
    """Make the tiny model; what is None or empty comes from SEED, HANABI_PRESET, HANABI_PLAYERS.

    Args:
        out: Folder to make; None: the one that MODEL is by default with these boards and players.
        presets: Boards that it is for.
        players: Players of a game.
        seed: Of games, initial weights and order.
        steps: Steps of the warm start.
        force: Build even if the folder is complete.
    """
    settings = load_settings().settings
    boards = tuple(presets) or (settings.preset or LAPTOP,)
    count = settings.players if players is None else players
    build_tiny_model(
        Path(tiny_model_folder(boards, count)) if out is None else out,
        preset=boards,
        seed=settings.seed if seed is None else seed,
        steps=steps,
        force=force,
        players=count,
        legal_moves=settings.legal_moves,
    )
