"""`hanabi-grpo tiny-model`: make the model of a game for machines without a GPU."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.defaults import LAPTOP, TINY_MODEL, tiny_model_folder


def tiny_model(
    out: Annotated[
        Path | None, typer.Option(help="Folder; the default of MODEL for this board when left out.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment; HANABI_ENV when left out.")] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="Preset, may be repeated; HANABI_PRESET when left out. One of another "
            "environment: "
            "kuhn_poker:kuhn_poker."
        ),
    ] = None,
    players: Annotated[
        int | None, typer.Option(help="Players; HANABI_PLAYERS when left out.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; SEED when left out.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps; 900 in Hanabi, 300 elsewhere.")
    ] = None,
    games: Annotated[
        int | None, typer.Option(min=1, help="Games of each preset that it watches.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Make it even if the folder is complete.")
    ] = False,
) -> None:
    """Make the tiny model that trains on a laptop, for one preset or several; at once when it is
    there already.

    It knows the words of these presets and players only. That of the default board is shipped in
    data/tiny-model: it is checked, and made only with --out."""
    # Imported here: it brings torch.
    from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model, check_shipped
    from hanabi_grpo.sft.tiny_model.build import TINY_MANIFEST

    settings = load_settings().settings
    env = env or settings.env
    default = LAPTOP if env == "hanabi" else next(iter(registry.get(env).presets))
    boards = tuple(dict.fromkeys(preset or ())) or (
        (settings.preset if env == settings.env else None) or default,
    )
    count = settings.players if players is None else players
    given = settings.env_config
    prompts = {
        name: given.get(name, default)
        for name, default in (("legal_moves", False), ("deductions", "possible"))
    }
    folder = Path(tiny_model_folder(boards, count, env)) if out is None else out
    if out is None and folder == Path(TINY_MODEL) and (folder / TINY_MANIFEST).is_file():
        if force or any(one is not None for one in (seed, steps, games)):
            raise SettingsError(
                f"{folder} is shipped with the repository and stays as it is; name another "
                "folder, e.g. --out "
                "outputs/tiny-laptop."
            )
        check_shipped(folder, **prompts)
        return
    recipe = Recipe.of(
        env,
        presets=boards,
        players=count,
        **prompts,
        seed=settings.seed if seed is None else seed,
        steps=steps,
        num_games=games,
    )
    build_tiny_model(folder, recipe, force=force)
