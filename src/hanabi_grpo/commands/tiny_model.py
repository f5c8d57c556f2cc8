"""`hanabi-grpo tiny-model`: make the model of the laptop demo."""

from pathlib import Path
from typing import Annotated

import typer


def tiny_model(
    out: Annotated[Path | None, typer.Option(help="Folder; the default of MODEL for this board when left out.")] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="Board, may be repeated; HANABI_PRESET or laptop when left out.")
    ] = None,
    players: Annotated[int | None, typer.Option(help="Players; HANABI_PLAYERS when left out.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; SEED when left out.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of the warm start.")] = 900,
    force: Annotated[bool, typer.Option("--force", help="Make it even if the folder is complete.")] = False,
) -> None:
    """Make the tiny model that trains on a laptop, for one board or several; at once when it is there already.

    It knows the words of these boards and players only.
    """
    from hanabi_grpo.settings import load_settings
    from hanabi_grpo.settings.board import LAPTOP, tiny_model_folder
    from hanabi_grpo.sft.tiny_model import build_tiny_model

    settings = load_settings().settings
    boards = tuple(preset or ()) or (settings.preset or LAPTOP,)
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
