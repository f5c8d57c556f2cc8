"""What commands that play share: options, the game from them and the settings, and the server of the models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hanabi_grpo.client.lineups import SeatResolver
from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import sayer
from hanabi_grpo.commands.train import wait_for_server
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.settings import LoadedSettings, Settings
from hanabi_grpo.settings.game import default_preset

Env = Annotated[str | None, typer.Option(help="Environment, e.g. kuhn; as in training when left out.")]
Preset = Annotated[str | None, typer.Option(help="Preset of it; as in training when left out.")]
Players = Annotated[int | None, typer.Option(help="Players; as in training when left out.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
OwnServer = Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")]


def game_setup(
    settings: Settings, preset: str | None = None, players: int | None = None, *, env: str | None = None
) -> Setup[Any]:
    """Return the game as training plays it: of the dataset's row, or of the settings when an option chooses.

    Args:
        settings: DATASET, and every variable of a game.
        preset: Of the environment; None: that of HANABI_PRESET or DATASET.
        players: How many play; None: likewise.
        env: Environment; None: that of HANABI_ENV or DATASET.

    Raises:
        SettingsError: The dataset has rows of several games and no option chooses, or there is no such game.
    """
    if preset is None and env is None:
        found = played_setups(training_rows(settings))
        if len(found) > 1:
            presets = ", ".join(dict.fromkeys(one.spec.preset for one in found))
            raise SettingsError(f"DATASET={settings.dataset}: holds several games ({presets}); choose one by --preset.")
        env, config = found[0].env, found[0].config.model_dump() | ({"players": players} if players else {})
    else:
        if env not in (None, settings.env):
            settings = Settings(device=settings.device, env=registry.get(env).name)
        chosen = {"preset": preset or settings.preset or default_preset(dict(settings))}
        env, config = settings.env, settings.config_row(chosen | ({"players": players} if players else {}))
    game = registry.setup(env, {key: config[key] for key in registry.get(env).Config.model_fields})
    if players not in (None, game.spec.num_players):
        raise SettingsError(f"--players {players}: {game.env} {game.spec.preset} has {game.spec.num_players} players.")
    return game


def chosen_temperature(settings: Settings, temperature: float | None) -> float:
    """Return the temperature of sampling: the option, or TEMPERATURE when it is left out.

    Raises:
        SettingsError: It is negative or no number.
    """
    heat = settings.temperature if temperature is None else temperature
    if not 0 <= heat < float("inf"):
        raise SettingsError(f"--temperature {heat}: must be 0 (greedy) or more.")
    return heat


@contextmanager
def serving(
    loaded: LoadedSettings, game: Setup[Any], temperature: float, console: Console, *, own: bool
) -> Iterator[tuple[RolloutClient, Served]]:
    """Give the rollout server that models play on, once it is healthy.

    Args:
        loaded: Where it is.
        game: What a server of one's own is started for.
        temperature: Of sampling.
        console: Where messages go.
        own: Start a server for this command alone.
    """
    with ExitStack() as stack:
        settings = loaded.settings
        if own:
            environ = {"HANABI_ENV": game.env, "HANABI_PRESET": game.spec.preset}
            if "players" in type(game.config).model_fields:
                environ["HANABI_PLAYERS"] = str(game.spec.num_players)
            settings = stack.enter_context(own_server(settings, sayer(console), environ=environ))
        else:
            wait_for_server(loaded, console)
        client = stack.enter_context(RolloutClient.from_settings(settings))
        resolver, limit = SeatResolver(client, settings), settings.max_completion_length
        yield client, Served(client=client, resolver=resolver, max_tokens=limit, temperature=temperature)


@contextmanager
def progress_bar(console: Console, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; gives what takes the number of deals done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(description, total=total)
        yield lambda done: progress.update(bar, completed=done)
