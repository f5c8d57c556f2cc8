"""Make the tiny model's folder: cached by recipe, and never seen half written."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.runs.run_folder import new_folder
from hanabi_grpo.runs.tiny_manifest import CARD, MANIFEST, damage_of, write_manifest
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.tiny_model.card import card_text, made_with
from hanabi_grpo.sft.tiny_model.corpus import play_corpus
from hanabi_grpo.sft.tiny_model.recipe import Recipe
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

_SEEDS_APART = 1_000_000
"""Distance of two recipes' first deals, so that recipes with other seeds learn from other games."""
_COLUMNS = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())


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
        GameParameterError: A preset is unknown or not for this number of players.
        RunFolderError: `out` is a file, or a folder that holds something else.
    """
    console = Console(stderr=True, highlight=False)
    chat = ChatFormat.from_tokenizer(build_tokenizer(recipe.words()))
    recipe_hash = hash_of(recipe, chat)
    if _is_complete(out, recipe_hash, force, console):
        return out
    start = time.monotonic()
    with new_folder(out) as folder:
        with Progress(*_COLUMNS, console=console) as progress:
            model = _train(chat, recipe, progress)
        model.save_pretrained(folder)
        chat.tokenizer.save_pretrained(folder)
        (folder / CARD).write_text(card_text(recipe, folder, num_words=len(chat.tokenizer)), encoding="utf-8")
        write_manifest(folder, {"recipe_hash": recipe_hash, "recipe": asdict(recipe), "made_with": made_with()})
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    console.print(f"tiny model: {out} ({size:.1f} MB, {time.monotonic() - start:.0f} s, recipe {recipe_hash})")
    return out


def hash_of(recipe: Recipe, chat: ChatFormat) -> str:
    """Return the hash of a recipe together with its words and the first conversation of each board."""
    probes = [next(_samples(config, chat, recipe, num_games=1)) for config in recipe.configs()]
    return recipe.hash([list(recipe.words()), *(list(probe.ids) for probe in probes)])


def _samples(config: EnvConfig, chat: ChatFormat, recipe: Recipe, *, num_games: int) -> Iterator[Sample]:
    first = recipe.seed * _SEEDS_APART
    return play_corpus(config, chat, noise=recipe.noise, first_seed=first, num_games=num_games)


def _is_complete(out: Path, recipe_hash: str, force: bool, console: Console) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not out.is_dir():
        raise RunFolderError(f"{out}: is a file; choose a folder for the tiny model.")
    if force:
        console.print(f"tiny model: {out} is built again (forced)")
        return False
    if not (out / MANIFEST).exists():
        raise RunFolderError(
            f"{out}: holds something that this command did not make (no {MANIFEST}); choose another folder, "
            "or replace it with --force."
        )
    problem = damage_of(out)
    if problem is None:
        made_by = json.loads((out / MANIFEST).read_text(encoding="utf-8")).get("recipe_hash")
        if made_by == recipe_hash:
            console.print(f"tiny model: {out} is there already (recipe {recipe_hash})")
            return True
        problem = f"it was made by another recipe ({made_by}, wanted {recipe_hash})"
    console.print(f"tiny model: {out} is built again: {problem}")
    return False


def _train(chat: ChatFormat, recipe: Recipe, progress: Progress) -> Any:
    # Not at the top: the tokenizer's users need no torch.
    import torch

    from hanabi_grpo.sft.tiny_model.warm_start import new_model, warm_start

    samples: list[Sample] = []
    bar = progress.add_task("games of the teacher", total=recipe.num_games * len(recipe.presets))
    for config in recipe.configs():
        samples += _samples(config, chat, recipe, num_games=recipe.num_games)
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
