"""Make the tiny model's folder: cached by recipe, and never seen half written."""

import json
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.runs.fingerprint import CARD, TINY_MANIFEST, damage_of, way_back, write_tiny_manifest
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import new_folder
from hanabi_grpo.settings.board import LAPTOP, tiny_model_command
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.tiny_model.recipe import HANABI, Recipe

_COLUMNS = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
_PACKAGES = ("hanabi-grpo", "torch", "transformers", "open_spiel")
_CARD = """\
---
license: apache-2.0
tags: [{env}, grpo]
---

# A tiny {title} player

It has watched {teacher}: it mostly moves legally and plays badly, which is what a training starts from on a machine \
without a GPU. It knows the words of its presets and nothing else.

| | |
|---|---|
{table}

This makes it again; another processor, version or number of threads may round sums in another way:

```bash
{command}
```

`{manifest}` holds the recipe and the sha256 of every file but this one. Whoever loads the folder checks them; with \
other files of your own, remove it.
"""


def build_tiny_model(out: Path, recipe: Recipe, *, force: bool = False) -> Path:
    """Make the model, unless the folder already holds the result of the same recipe.

    The folder is a Hugging Face model: config, generation config, float32 safetensors, tokenizer with chat template,
    a card and a manifest; complete or absent.

    Args:
        out: Folder to make.
        recipe: What it is made from.
        force: Build even if the folder is complete, and replace a folder that this function did not make.

    Returns:
        The folder.

    Raises:
        HanabiGrpoError: A preset is unknown or not for this number of players.
        RunFolderError: `out` is a file, or a folder that holds something else.
    """
    console = Console(stderr=True, highlight=False)
    chat = recipe.chat()
    recipe_hash = recipe.hash(chat)
    if _is_complete(out, recipe_hash, force, console):
        return out
    start = time.monotonic()
    with new_folder(out) as folder:
        with Progress(*_COLUMNS, console=console) as progress:
            model = _train(chat, recipe, progress)
        model.save_pretrained(folder)
        chat.tokenizer.save_pretrained(folder)
        made = _made_with()
        (folder / CARD).write_text(_card(recipe, folder, len(chat.tokenizer), made), encoding="utf-8")
        write_tiny_manifest(folder, {"recipe_hash": recipe_hash, "recipe": asdict(recipe), "made_with": made})
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    console.print(f"tiny model: {out} ({size:.1f} MB, {time.monotonic() - start:.0f} s, recipe {recipe_hash})")
    return out


def check_shipped(folder: Path, *, legal_moves: bool) -> None:
    """Say that the shipped model is whole, and when it learned from other prompts than those to come.

    Raises:
        RunFolderError: Its files are not those that were shipped.
    """
    make = tiny_model_command([LAPTOP], 2)
    if damage := damage_of(folder):
        raise RunFolderError(f"{folder}: {damage}. Get it back with: {way_back(folder, make)}")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    manifest = json.loads((folder / TINY_MANIFEST).read_text(encoding="utf-8"))
    console.print(f"tiny model: {folder} is shipped and whole (recipe {manifest['recipe_hash']})")
    if legal_moves and not manifest["recipe"]["legal_moves"]:
        console.print(
            f"tiny model: {folder} has learned from prompts without legal moves, but HANABI_LEGAL_MOVES is set. One "
            f"that has learned from such: {make} --out outputs/tiny-laptop-legal-moves, then MODEL=that folder"
        )


def _is_complete(out: Path, recipe_hash: str, force: bool, console: Console) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not out.is_dir():
        raise RunFolderError(f"{out}: is a file; choose a folder for the tiny model.")
    if force:
        console.print(f"tiny model: {out} is built again (forced)")
        return False
    if not (out / TINY_MANIFEST).exists():
        raise RunFolderError(
            f"{out}: holds something that this command did not make (no {TINY_MANIFEST}); choose another folder, "
            "or replace it with --force."
        )
    problem = damage_of(out)
    if problem is None:
        made_by = json.loads((out / TINY_MANIFEST).read_text(encoding="utf-8")).get("recipe_hash")
        if made_by == recipe_hash:
            console.print(f"tiny model: {out} is there already (recipe {recipe_hash})")
            return True
        problem = f"it was made by another recipe ({made_by}, wanted {recipe_hash})"
    console.print(f"tiny model: {out} is built again: {problem}")
    return False


def _train(chat: ChatFormat, recipe: Recipe, progress: Progress) -> Any:
    # Not at the top: the tokenizer's users need no torch.
    import torch

    from hanabi_grpo.sft.tiny_model.network import new_model, warm_start

    samples: list[Sample] = []
    bar = progress.add_task("games of the teacher", total=recipe.num_games * len(recipe.presets))
    for setup in recipe.setups():
        samples += recipe.samples(setup, chat)
        progress.update(bar, advance=recipe.num_games)
    bar = progress.add_task("warm start", total=recipe.steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = new_model(chat.tokenizer)
        warm_start(
            model,
            samples,
            recipe,
            pad_id=int(chat.tokenizer.pad_token_id),
            on_step=lambda step, loss: progress.update(bar, completed=step, description=f"warm start, loss {loss:.3f}"),
        )
    return model


def _made_with() -> dict[str, str | int]:
    """Return the versions of what makes a model, and the number of threads, which decides how sums are rounded."""
    import torch

    versions = {name: version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **versions, "threads": torch.get_num_threads()}


def _card(recipe: Recipe, folder: Path, num_words: int, made: dict[str, str | int]) -> str:
    """Return the card in Markdown; the folder holds the weights already."""
    is_hanabi = recipe.env == HANABI
    presets = ", ".join(f"`{preset}`" for preset in recipe.presets)
    legal = " that list the legal moves" if recipe.legal_moves else ""
    hanabi = f"{recipe.players} players, compact prompts{legal}"
    turns = f", the first {recipe.single_turn_share:.0%} on single turns" if recipe.single_turn_share else ""
    weights = folder / "model.safetensors"
    facts = {
        "boards" if is_hanabi else "presets": f"{presets}, {hanabi}" if is_hanabi else f"{recipe.env}: {presets}",
        "architecture": f"Qwen3, 3 layers of width 128, {num_words} words, float32 ({weights.stat().st_size:,} bytes)",
        "learned from": f"{recipe.num_games} games of {'the hint bot' if is_hanabi else 'scripts'} on each "
        f"{'board' if is_hanabi else 'preset'}, {recipe.noise:.0%} of the moves random and learned too",
        "steps": f"{recipe.steps} of {recipe.batch_size} conversations{turns}; AdamW, one cycle up to "
        f"{recipe.learning_rate:g}",
        "seed": recipe.seed,
        "made with": ", ".join(f"{name} {value}" for name, value in made.items()),
        "sha256 of `model.safetensors`": f"`{file_sha256(weights)}`",
    }
    command = (
        f"{tiny_model_command(recipe.presets, recipe.players, recipe.env)} --seed {recipe.seed} --steps {recipe.steps}"
    )
    return _CARD.format(
        env=recipe.env,
        title=recipe.env.capitalize(),
        teacher="a noisy hint bot" if is_hanabi else "random play and noisy scripts",
        table="\n".join(f"| {name} | {fact} |" for name, fact in facts.items()),
        command=f"OMP_NUM_THREADS={made['threads']} {command} --out FOLDER",
        manifest=TINY_MANIFEST,
    )
