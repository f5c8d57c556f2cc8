"""Build the tiny model's folder: cached by recipe, and never visible half-written."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.progress import Progress

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import new_folder, write_json_atomic, writing
from hanabi_grpo.settings.defaults import LAPTOP, PromptStyle, tiny_model_command
from hanabi_grpo.sft.tiny_model.recipe import Recipe
from hanabi_grpo.terminal import VisibleConsole
from hanabi_grpo.training import quiet

TINY_MANIFEST = "tiny_model.json"
"""File in a tiny model's folder with the recipe that built it."""
_PACKAGES = ("hanabi-grpo", "torch", "transformers", "open_spiel")
"""Packages whose versions the manifest records."""
_DEFAULT_DEDUCTIONS = "possible"
"""Default of HANABI_DEDUCTIONS; the shipped model was trained on such prompts."""
_CARD = """\
---
license: apache-2.0
tags: [{env}, grpo]
---

# A tiny {title} player

It was pretrained on games of noisy scripts: it makes mostly legal moves and plays badly. Runs on \
machines without a GPU start from it. It knows the {words} of its presets and nothing else.

| | |
|---|---|
{table}

This command rebuilds it. Another processor, version or thread count may round sums differently:

```bash
{command}
```

`{manifest}` holds the recipe.
"""


def build_tiny_model(out: Path, recipe: Recipe, *, force: bool = False) -> Path:
    """Build a folder with the model, its tokenizer, a card and a manifest.

    A folder built from the same recipe is kept. The folder is either complete or absent.

    Args:
        out: The folder.
        recipe: The recipe of the model.
        force: Build the model even if it is complete, and replace any other folder.

    Returns:
        The folder.

    Raises:
        HanabiGrpoError: A preset is unknown or not for this number of players, or the model to
            start from is another network.
        RunFolderError: `out` is a file, or a folder with other content.
    """
    quiet.before_imports()
    # Imported here, because checking the shipped model needs no torch.
    import torch

    from hanabi_grpo.sft.tiny_model.network import trained_model

    quiet.after_imports()
    console = VisibleConsole(stderr=True)
    chat = recipe.chat()
    recipe_hash = recipe.hash(chat)
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out}: is a file; choose a folder for the tiny model.")
    if not force and out.exists() and any(out.iterdir()):
        reason = _reason_to_rebuild(out, recipe_hash)
        if reason is None:
            console.print(f"tiny model: {out} already exists (recipe {recipe_hash})")
            return out
        console.print(f"tiny model: {out} is rebuilt: {reason}")
    with writing(partial(_unwritable, out)), new_folder(out) as folder:
        with Progress(console=console) as progress:
            trained = trained_model(chat, recipe, progress)
        trained.model.save_pretrained(folder)
        chat.tokenizer.save_pretrained(folder)
        made_with: dict[str, Any] = {"python": platform.python_version()}
        for name in _PACKAGES:
            made_with[name] = version(name)
        # The number of threads affects the rounding of sums.
        made_with["threads"] = torch.get_num_threads()
        (folder / "README.md").write_text(_card(recipe, folder, made_with), encoding="utf-8")
        facts = {
            "recipe_hash": recipe_hash,
            "recipe": asdict(recipe),
            "made_with": made_with,
            "held_out": trained.held_out,
        }
        write_json_atomic(folder / TINY_MANIFEST, facts)
    if trained.transfer is not None:
        console.print(f"tiny model: started from {recipe.start}: {trained.transfer}")
    for preset, figures in trained.held_out.items():
        console.print(f"tiny model: {preset}: {_figures_text(figures)}")
    console.print(f"tiny model: {out} (recipe {recipe_hash})")
    return out


def _unwritable(out: Path, error: OSError) -> str:
    """Return the message about a folder that cannot be written."""
    return (
        f"{out}: the tiny model cannot be written there ({error.strerror}). Make the folder "
        "writable, or choose another one (--out, or MODEL for the scripts)."
    )


def _figures_text(figures: Mapping[str, Any]) -> str:
    """Return the figures of held-out games as text."""
    from hanabi_grpo.sft.learning import belief_text

    text = (
        f"on held-out games of its teacher: loss {figures['loss']:.3f} nats per token, agreement "
        f"{figures['accuracy']:.3f}"
    )
    if beliefs := belief_text(figures):
        text += f"; belief loss in nats per answer: {beliefs}"
    return text


def check_shipped(folder: Path, *, legal_moves: bool, deductions: str) -> None:
    """Report the shipped model, and warn if it was trained on different prompts.

    Args:
        folder: The shipped model.
        legal_moves: HANABI_LEGAL_MOVES of the coming rollouts.
        deductions: HANABI_DEDUCTIONS of the coming rollouts.
    """
    console = VisibleConsole(stderr=True, soft_wrap=True)
    manifest = json.loads((folder / TINY_MANIFEST).read_text(encoding="utf-8"))
    console.print(f"tiny model: {folder} is shipped (recipe {manifest['recipe_hash']})")
    make = tiny_model_command([LAPTOP], 2)
    other_prompts = []
    if legal_moves:
        other_prompts.append("LEGAL_MOVES=true")
    if deductions != _DEFAULT_DEDUCTIONS:
        other_prompts.append(f"DEDUCTIONS={deductions}")
    for setting in other_prompts:
        name, _, _ = setting.partition("=")
        console.print(
            f"tiny model: {folder} was not trained on prompts with HANABI_{setting}. To build one "
            f"that is: {make} --out outputs/tiny-laptop-{name.lower()}, then set MODEL to that "
            "folder"
        )


def _reason_to_rebuild(out: Path, recipe_hash: str) -> str | None:
    """Return why a folder must be rebuilt; None if it was built from this recipe."""
    manifest = out / TINY_MANIFEST
    if not manifest.exists():
        raise RunFolderError(
            f"{out}: holds files that this command did not create (no {TINY_MANIFEST}); choose "
            "another folder, or replace them with --force."
        )
    made_by = json.loads(manifest.read_text(encoding="utf-8")).get("recipe_hash")
    if made_by == recipe_hash:
        return None
    return f"it was built from another recipe ({made_by}, expected {recipe_hash})"


def _card(recipe: Recipe, folder: Path, made_with: Mapping[str, Any]) -> str:
    """Return the card in Markdown; the folder already contains the weights."""
    facts = {
        **asdict(recipe),
        "presets": ", ".join(recipe.presets),
        "made with": ", ".join(f"{name} {value}" for name, value in made_with.items()),
        "sha256 of `model.safetensors`": f"`{file_sha256(folder / 'model.safetensors')}`",
    }
    rows = [f"| {name} | {fact} |" for name, fact in facts.items()]
    command = _command(recipe, made_with["threads"])
    return _CARD.format(
        env=recipe.env,
        title=recipe.env.capitalize(),
        words="texts" if recipe.style == PromptStyle.FULL else "words",
        table="\n".join(rows),
        command=command,
        manifest=TINY_MANIFEST,
    )


def _command(recipe: Recipe, threads: int) -> str:
    """Return the command that makes a model by this recipe, with the variables it reads."""
    variables = [f"OMP_NUM_THREADS={threads}"]
    if recipe.legal_moves:
        variables.append("HANABI_LEGAL_MOVES=true")
    if recipe.deductions != _DEFAULT_DEDUCTIONS:
        variables.append(f"HANABI_DEDUCTIONS={recipe.deductions}")
    if recipe.memory is not None:
        variables.append(f"HANABI_MEMORY={recipe.memory}")
    make = tiny_model_command(recipe.presets, recipe.players, recipe.env, style=recipe.style)
    options = f"--seed {recipe.seed} --steps {recipe.steps} --games {recipe.num_games}"
    if recipe.logit_scale != 1:
        options += f" --logit-scale {recipe.logit_scale:g}"
    if recipe.width is not None:
        options += f" --width {recipe.width}"
    if recipe.layers is not None:
        options += f" --layers {recipe.layers}"
    if recipe.teacher is not None:
        options += f" --teacher {recipe.teacher}"
    if recipe.beliefs:
        options += f" --beliefs {recipe.beliefs}"
    if recipe.start is not None:
        options += f" --start {recipe.start}"
    return f"{' '.join(variables)} {make} {options} --out FOLDER"
