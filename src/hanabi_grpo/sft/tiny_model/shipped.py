"""The tiny model that is shipped with the repository."""

import json
from pathlib import Path

from rich.console import Console

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.tiny_manifest import MANIFEST, damage_of, way_back
from hanabi_grpo.settings.board import LAPTOP, tiny_model_command


def check_shipped(folder: Path, *, legal_moves: bool) -> None:
    """Say that the shipped model is whole, and when it learned from other prompts than those to come.

    Args:
        folder: Where it is.
        legal_moves: HANABI_LEGAL_MOVES.

    Raises:
        RunFolderError: Its files are not those that were shipped.
    """
    make = tiny_model_command([LAPTOP], 2)
    if damage := damage_of(folder):
        raise RunFolderError(f"{folder}: {damage}. Get it back with: {way_back(folder, make)}")
    console = Console(stderr=True, highlight=False)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    console.print(f"tiny model: {folder} is shipped and whole (recipe {manifest['recipe_hash']})", soft_wrap=True)
    if legal_moves and not manifest["recipe"]["legal_moves"]:
        console.print(
            f"tiny model: {folder} has learned from prompts without legal moves, but HANABI_LEGAL_MOVES is set. One "
            f"that has learned from such: {make} --out outputs/tiny-laptop-legal-moves, then MODEL=that folder",
            soft_wrap=True,
        )
