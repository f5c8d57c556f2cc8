"""The README of a tiny model's folder: what it is, how it was made, how to make it again."""

import platform
from importlib.metadata import version
from pathlib import Path

from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.tiny_manifest import MANIFEST
from hanabi_grpo.settings.board import tiny_model_command
from hanabi_grpo.sft.tiny_model.recipe import Recipe

_PACKAGES = ("hanabi-grpo", "torch", "transformers", "open_spiel")


def made_with() -> dict[str, str | int]:
    """Return the versions of what makes a model, and the number of threads, which decides how sums are rounded."""
    import torch

    versions = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **versions, "threads": torch.get_num_threads()}


def card_text(recipe: Recipe, folder: Path, *, num_words: int) -> str:
    """Return the card in Markdown.

    Args:
        recipe: What it was made by.
        folder: Holds the weights already.
        num_words: Size of its vocabulary.
    """
    boards = ", ".join(f"`{preset}`" for preset in recipe.presets)
    weights = folder / "model.safetensors"
    made = made_with()
    facts = {
        "boards": f"{boards}, {recipe.players} players, compact prompts"
        + (" that list the legal moves" if recipe.legal_moves else ""),
        "architecture": f"Qwen3, 3 layers of width 128, {num_words} words, float32 ({weights.stat().st_size:,} bytes)",
        "learned from": f"{recipe.num_games} games of the hint bot on each board, {recipe.noise:.0%} of the moves "
        "random and learned too",
        "steps": f"{recipe.steps} of {recipe.batch_size} conversations, the first {recipe.single_turn_share:.0%} on "
        f"single turns; AdamW, one cycle up to {recipe.learning_rate:g}",
        "seed": recipe.seed,
        "made with": ", ".join(f"{name} {value}" for name, value in made.items()),
        "sha256 of `model.safetensors`": f"`{file_sha256(weights)}`",
    }
    command = f"{tiny_model_command(recipe.presets, recipe.players)} --seed {recipe.seed} --steps {recipe.steps}"
    return "\n".join(
        [
            "---",
            "license: apache-2.0",
            "tags: [hanabi, grpo]",
            "---",
            "",
            "# A tiny Hanabi player",
            "",
            "It has watched a noisy hint bot: it mostly moves legally and plays badly, which is what a training starts "
            "from on a machine without a GPU. It knows the words of its boards and nothing else.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {fact} |" for name, fact in facts.items()),
            "",
            "This makes it again; another processor, version or number of threads may round sums in another way:",
            "",
            "```bash",
            f"OMP_NUM_THREADS={made['threads']} {command} --out FOLDER",
            "```",
            "",
            f"`{MANIFEST}` holds the recipe and the sha256 of every file but this one. Whoever loads the folder checks "
            "them; with other files of your own, remove it.",
            "",
        ]
    )
