"""Make the tiny model's folder: cached by recipe, and never seen half written."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import HintBot
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.sft.tiny_model.corpus import Sample, play_corpus
from hanabi_grpo.sft.tiny_model.recipe import MANIFEST, Recipe, problem_of, write_manifest
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

_SEEDS_APART = 1_000_000
"""Distance of two recipes' first deals, so that recipes with other seeds learn from other games."""


def build_tiny_model(
    out: Path,
    *,
    preset: str | Sequence[str] = "laptop",
    seed: int = 0,
    steps: int = 900,
    force: bool = False,
    players: int = 2,
    legal_moves: bool = False,
    num_games: int | None = None,
) -> Path:
    """Make the model, unless the folder already holds the result of the same recipe.

    The folder is a Hugging Face model: config, generation config, float32 safetensors, tokenizer with chat
    template. It is written beside `out` and renamed, so `out` is complete or absent.

    Args:
        out: Folder to make.
        preset: Board that its vocabulary and its warm start are for, or several boards.
        seed: Of the games, the initial weights and the order of batches.
        steps: Optimizer steps of the warm start.
        force: Build even if the folder is complete, and replace a folder that this function did not make.
        players: Players of a game.
        legal_moves: Whether prompts list the legal moves; as in the rollouts to come (HANABI_LEGAL_MOVES).
        num_games: Games of the warm start on each board; None: the recipe's own number.

    Returns:
        The folder.

    Raises:
        SettingsError: `steps` or `seed` out of range, or a board that is named twice.
        GameParameterError: The preset is unknown or not for this number of players.
        RunFolderError: `out` is a file, or a folder that holds something else.
    """
    if steps < 1 or seed < 0:
        raise SettingsError(f"steps={steps} seed={seed}: steps are 1 or more, a seed is 0 or more.")
    console = Console(stderr=True, highlight=False)
    presets = (preset,) if isinstance(preset, str) else tuple(preset)
    if not presets or len(set(presets)) < len(presets):
        raise SettingsError(f"--preset {' '.join(presets)}: name at least one board, and each once.")
    recipe = Recipe(
        preset=presets[0], more_presets=presets[1:], players=players, legal_moves=legal_moves, seed=seed, steps=steps
    )
    if num_games is not None:
        recipe = replace(recipe, num_games=num_games)
    configs = [
        EnvConfig.parse({"preset": name, "players": players, "observation": "compact", "legal_moves": legal_moves})
        for name in presets
    ]
    vocabulary = tuple(dict.fromkeys(word for config in configs for word in compact_vocabulary(config.spec())))
    tokenizer = build_tokenizer(vocabulary)
    chat = ChatFormat.from_tokenizer(tokenizer)
    probes = [next(_corpus(config, chat, recipe, num_games=1)) for config in configs]
    recipe_hash = recipe.hash([list(vocabulary), *(list(probe.ids) for probe in probes)])
    if _is_complete(out, recipe_hash, force, console):
        return out
    start = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target: a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "new"
        folder.mkdir()
        with _progress(console) as progress:
            model = _train(configs, chat, recipe, progress)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_manifest(folder, recipe, recipe_hash)
        if out.exists():
            os.replace(out, Path(scratch) / "old")
        os.replace(folder, out)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    console.print(f"tiny model: {out} ({size:.1f} MB, {time.monotonic() - start:.0f} s, recipe {recipe_hash})")
    return out


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
    problem = problem_of(out, recipe_hash)
    if problem is None:
        console.print(f"tiny model: {out} is there already (recipe {recipe_hash})")
        return True
    console.print(f"tiny model: {out} is built again: {problem}")
    return False


def _corpus(config: EnvConfig, chat: ChatFormat, recipe: Recipe, *, num_games: int) -> Iterator[Sample]:
    teacher = HintBot(noise=recipe.noise)
    return play_corpus(config, teacher, chat, first_seed=recipe.seed * _SEEDS_APART, num_games=num_games)


def _train(configs: Sequence[EnvConfig], chat: ChatFormat, recipe: Recipe, progress: Progress) -> Any:
    import torch

    from hanabi_grpo.sft.tiny_model.warm_start import new_model, warm_start

    bar = progress.add_task("games of the teacher", total=recipe.num_games * len(configs))
    samples: list[Sample] = []
    for config in configs:
        samples += _corpus(config, chat, recipe, num_games=recipe.num_games)
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


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
