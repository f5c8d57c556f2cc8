"""Make the tiny model's folder: cached by recipe, and never seen half written."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import new_folder, write_json_atomic
from hanabi_grpo.settings.defaults import LAPTOP, tiny_model_command
from hanabi_grpo.sft.tiny_model.recipe import Recipe

TINY_MANIFEST = "tiny_model.json"
"""In a tiny model's folder: the recipe that made it."""
_PACKAGES = ("hanabi-grpo", "torch", "transformers", "open_spiel")
_CARD = """\
---
license: apache-2.0
tags: [{env}, grpo]
---

# A tiny {title} player

It has watched noisy scripts: it mostly moves legally and plays badly, which is what a run starts from on a \
machine without a GPU. It knows the words of its presets and nothing else.

| | |
|---|---|
{table}

This makes it again; another processor, version or number of threads may round sums in another way:

```bash
{command}
```

`{manifest}` holds the recipe.
"""


def build_tiny_model(out: Path, recipe: Recipe, *, force: bool = False) -> Path:
    """Make a folder with the model, its tokenizer, a card and a manifest, unless the same recipe
    made it already.

    It is complete or absent. `force` makes it even if it is complete, and replaces a folder of
    another kind.

    Raises:
        HanabiGrpoError: A preset is unknown or not for this number of players.
        RunFolderError: `out` is a file, or a folder that holds something else.
    """
    # Not at the top: looking at the shipped model needs no torch.
    import torch

    from hanabi_grpo.sft.tiny_model.network import trained_model

    console = Console(stderr=True, highlight=False)
    chat = recipe.chat()
    recipe_hash = recipe.hash(chat)
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out}: is a file; choose a folder for the tiny model.")
    if not force and out.exists() and any(out.iterdir()):
        problem = _problem_of(out, recipe_hash)
        if problem is None:
            console.print(f"tiny model: {out} is there already (recipe {recipe_hash})")
            return out
        console.print(f"tiny model: {out} is built again: {problem}")
    with new_folder(out) as folder:
        with Progress(console=console) as progress:
            trained_model(chat, recipe, progress).save_pretrained(folder)
        chat.tokenizer.save_pretrained(folder)
        made: dict[str, Any] = {
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        }
        # Their number decides how sums are rounded.
        made["threads"] = torch.get_num_threads()
        (folder / "README.md").write_text(_card(recipe, folder, made), encoding="utf-8")
        facts = {"recipe_hash": recipe_hash, "recipe": asdict(recipe), "made_with": made}
        write_json_atomic(folder / TINY_MANIFEST, facts)
    console.print(f"tiny model: {out} (recipe {recipe_hash})")
    return out


def check_shipped(folder: Path, *, legal_moves: bool, deductions: str) -> None:
    """Say that the shipped model is there, and when it learned from other prompts than those to
    come.
    """
    make = tiny_model_command([LAPTOP], 2)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    manifest = json.loads((folder / TINY_MANIFEST).read_text(encoding="utf-8"))
    console.print(f"tiny model: {folder} is shipped (recipe {manifest['recipe_hash']})")
    others = {"LEGAL_MOVES=true": legal_moves, f"DEDUCTIONS={deductions}": deductions != "possible"}
    for name in (name for name, is_set in others.items() if is_set):
        console.print(
            f"tiny model: {folder} has learned from other prompts than those of HANABI_{name}. "
            "One that has learned "
            f"from such: {make} --out outputs/tiny-laptop-{name.partition('=')[0].lower()}, then "
            "MODEL=that folder"
        )


def _problem_of(out: Path, recipe_hash: str) -> str | None:
    """Return why a folder that is there has to be built again; None where it is what the recipe
    makes.
    """
    if not (out / TINY_MANIFEST).exists():
        raise RunFolderError(
            f"{out}: holds something that this command did not make (no {TINY_MANIFEST}); choose "
            "another folder, "
            "or replace it with --force."
        )
    made_by = json.loads((out / TINY_MANIFEST).read_text(encoding="utf-8")).get("recipe_hash")
    return (
        None
        if made_by == recipe_hash
        else f"it was made by another recipe ({made_by}, wanted {recipe_hash})"
    )


def _card(recipe: Recipe, folder: Path, made: Mapping[str, Any]) -> str:
    """Return the card in Markdown; the folder holds the weights already."""
    facts = {
        **asdict(recipe),
        "presets": ", ".join(recipe.presets),
        "made with": ", ".join(f"{name} {value}" for name, value in made.items()),
        "sha256 of `model.safetensors`": f"`{file_sha256(folder / 'model.safetensors')}`",
    }
    make = tiny_model_command(recipe.presets, recipe.players, recipe.env)
    return _CARD.format(
        env=recipe.env,
        title=recipe.env.capitalize(),
        table="\n".join(f"| {name} | {fact} |" for name, fact in facts.items()),
        command=f"OMP_NUM_THREADS={made['threads']} {make} --seed {recipe.seed} --steps "
        f"{recipe.steps} --out FOLDER",
        manifest=TINY_MANIFEST,
    )
