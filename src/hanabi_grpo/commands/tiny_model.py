"""`hanabi-grpo tiny-model`: build the tiny model of a game for machines without a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.fingerprint import has_model
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings
from hanabi_grpo.settings.defaults import (
    LAPTOP,
    TINY_MODEL,
    PromptStyle,
    is_local_model,
    tiny_model_folder,
)
from hanabi_grpo.settings.shipped import shipped_model

if TYPE_CHECKING:
    from hanabi_grpo.sft.tiny_model import Recipe

_MAX_SHOWN = 5
"""Maximum number of unknown words in a message."""


def tiny_model(
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder.", show_default="folder of MODEL for this board"),
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment.", show_default="HANABI_ENV")] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="Preset. May be repeated. From another environment: kuhn_poker:kuhn_poker.",
            show_default="HANABI_PRESET",
        ),
    ] = None,
    players: Annotated[
        int | None, typer.Option(help="Number of players.", show_default="HANABI_PLAYERS")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed.", show_default="SEED")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimizer steps.", show_default="900 in Hanabi, 300 elsewhere"),
    ] = None,
    games: Annotated[int | None, typer.Option(min=1, help="Training games per preset.")] = None,
    style: Annotated[
        PromptStyle,
        typer.Option(
            help="Style of prompts: compact (one word per fact) or full (English with the rules, "
            "tokenizer trained on the environment's texts). With full, play Hanabi with "
            "HANABI_OBSERVATION=full."
        ),
    ] = PromptStyle.COMPACT,
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Script whose games it learns from, e.g. hint-bot-aloud, whose thoughts it then "
            "learns too.",
            show_default="the environment's teacher",
        ),
    ] = None,
    beliefs: Annotated[
        str,
        typer.Option(
            help="Share of the learned replies that name a hidden card when asked: 0.3 or "
            "player_0=0.3,player_1=0. The labels are the true cards."
        ),
    ] = "0",
    logit_scale: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=100,
            help="Factor of the final norm from half of the steps on. With 2 or more, players who "
            "train from the model can become sure of any word; with 1, some words may keep a "
            "probability below .97.",
        ),
    ] = 1.0,
    width: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hidden size of the network, a multiple of 64. The feed-forward part is three "
            "times as wide.",
            show_default="128; 192 for words with parts; 256 for --style full",
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of layers of the network.",
            show_default="3; 2 for words with parts",
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a tiny model to start from, e.g. one for fewer players. It needs the "
            "same architecture; words that it does not know are composed of the parts of others.",
            show_default="random weights",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build the model even if the folder has it already.")
    ] = False,
) -> None:
    """Build the tiny model that trains on a laptop, for one or more presets.

    An existing model is kept if it was built with the same options and settings; otherwise it is
    replaced. In the compact style it knows only the words of these presets and players. The model
    of the default board is shipped in data/tiny-model: it is checked, and built only with --out.
    """
    # Imported here: it brings torch.
    from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model, check_shipped
    from hanabi_grpo.sft.tiny_model.build import TINY_MANIFEST

    loaded = load_settings()
    settings = loaded.settings
    is_compact = style is PromptStyle.COMPACT
    has_beliefs = beliefs != "0"
    is_usual_network = width is None and layers is None and start is None
    is_usual = is_compact and teacher is None and not has_beliefs and is_usual_network
    if start is not None and not has_model(start):
        raise SettingsError(
            f"--start {start}: no model in this folder; name the folder of a tiny model, with "
            "config.json and model.safetensors."
        )
    is_board_of_settings = is_usual and env is None and not preset and players is None
    env = env or settings.env
    presets = _presets(preset, env, settings)
    num_players = settings.players if players is None else players
    legal_moves = settings.env_config.get("legal_moves", False)
    deductions = settings.env_config.get("deductions", "possible")
    recipe = Recipe.of(
        env,
        presets=presets,
        players=num_players,
        legal_moves=legal_moves,
        deductions=deductions,
        style=style.value,
        teacher=teacher,
        memory=None if is_compact else settings.env_config.get("memory"),
        seed=settings.seed if seed is None else seed,
        steps=steps,
        num_games=games,
        logit_scale=logit_scale,
        width=width,
        layers=layers,
        beliefs=beliefs if has_beliefs else None,
        start=None if start is None else str(start),
    )
    if is_compact and env == settings.env and not preset:
        _check_words(recipe, settings)
    folder = out
    if folder is None and is_board_of_settings:
        folder = _asked_folder(loaded)
    if folder is None:
        folder = Path(tiny_model_folder(presets, num_players, env, style=style.value))
        if folder == Path(shipped_model()) and (folder / TINY_MANIFEST).is_file():
            given = (seed, steps, games, teacher, width, layers, start)
            is_changed = has_beliefs or logit_scale != 1
            if force or is_changed or any(value is not None for value in given):
                raise SettingsError(
                    f"{folder} is shipped and is not changed; name another "
                    "folder, e.g. --out outputs/tiny-laptop."
                )
            check_shipped(folder, legal_moves=legal_moves, deductions=deductions)
            return
    build_tiny_model(folder, recipe, force=force)


def _asked_folder(loaded: LoadedSettings) -> Path | None:
    """Return the folder that MODEL names, if it was set to a local folder."""
    is_given = not loaded.origins["model"].startswith("default")
    if not is_given or not is_local_model(loaded.settings.model):
        return None
    folder = Path(loaded.settings.model)
    return None if folder == Path(TINY_MODEL) else folder


def _check_words(recipe: "Recipe", settings: Settings) -> None:
    """Refuse to build a model that could not read the prompts of these settings.

    Raises:
        SettingsError: It would not know all of their words.
    """
    from hanabi_grpo.rollout.vocabulary import game_words

    words = game_words(settings.setup())
    known = set(recipe.words())
    unknown = [word for word in words if word not in known]
    if not unknown:
        return
    shown = ", ".join(unknown[:_MAX_SHOWN])
    raise SettingsError(
        f"MODEL: the tiny model of {settings.env} knows only the words of its own tasks in the "
        f"compact style, and not {len(unknown)} of the {len(words)} words that players would read "
        f"with these settings: {shown}, …. Build one that reads any text, with --style full; set "
        "MODEL to a language model, e.g. MODEL=Qwen/Qwen3-0.6B (slow on a CPU); or unset what "
        "changes the texts, such as HANABI_STYLE=full, HANABI_OBSERVATION=full or HANABI_PROBLEMS."
    )


def _presets(given: list[str] | None, env: str, settings: Settings) -> tuple[str, ...]:
    """Return the given presets without repeats, else the settings', else the environment's."""
    if given:
        return tuple(dict.fromkeys(given))
    if env == settings.env and settings.board:
        return (settings.board,)
    if env == "hanabi":
        return (LAPTOP,)
    return (next(iter(registry.get(env).presets)),)
