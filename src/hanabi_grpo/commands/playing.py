"""What commands that play share: options, the game from them and the settings, and the server of the models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.train import wait_for_server
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.rollout.resolver import SeatResolver
from hanabi_grpo.settings import LoadedSettings, Settings

Preset = Annotated[str | None, typer.Option(help="Preset; as in training when left out.")]
Players = Annotated[int | None, typer.Option(help="Players; as in training when left out.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
OwnServer = Annotated[bool, typer.Option("--own-server", help="Start a rollout server for this command.")]


def stderr_console() -> Console:
    """Return a console for progress and messages that are no result."""
    return Console(stderr=True, highlight=False, emoji=False)


def game_setup(settings: Settings, preset: str | None, players: int | None = None) -> Setup[Any]:
    """Return the game as training plays it: of the dataset's row, or of the settings when a preset is given.

    Args:
        settings: DATASET, and every variable of a game.
        preset: Preset of any environment; None: the one of HANABI_PRESET or DATASET.
        players: Players; None: likewise.

    Raises:
        SettingsError: The dataset has rows of several games and no preset chooses, or no such preset for these players.
    """
    if preset is None:
        found = played_setups(training_rows(settings))
        if len(found) > 1:
            presets = ", ".join(dict.fromkeys(one.spec.preset for one in found))
            raise SettingsError(f"DATASET={settings.dataset}: holds several games ({presets}); choose one by --preset.")
        env, config = found[0].env, found[0].config.model_dump()
    else:
        env = next((name for name in registry.names() if preset in registry.get(name).presets), HANABI.name)
        own = {key: getattr(settings, key) for key in EnvConfig.model_fields} | {"preset": preset}
        config = own if env == HANABI.name else registry.get(env).presets[preset].model_dump()
    return registry.setup(env, config if players is None else {**config, "players": players})


def game_config(settings: Settings, preset: str | None, players: int | None = None) -> EnvConfig:
    """Return the config of `game_setup` for a command that plays Hanabi alone.

    Raises:
        SettingsError: As `game_setup`, or it is another game.
    """
    found = game_setup(settings, preset, players)
    if not isinstance(found.config, EnvConfig):
        raise SettingsError(f"--preset {found.spec.preset}: is of {found.env}; this command plays Hanabi alone.")
    return found.config


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

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    with ExitStack() as stack:
        settings = loaded.settings
        if own:
            environ = {"HANABI_PLAYERS": str(game.spec.num_players)}
            if game.env == HANABI.name:
                environ["HANABI_PRESET"] = game.spec.preset
            settings = stack.enter_context(own_server(settings, say, environ=environ))
        else:
            wait_for_server(loaded, console)
        client = stack.enter_context(RolloutClient.from_settings(settings))
        yield (
            client,
            Served(
                client=client,
                resolver=SeatResolver(client, settings),
                max_tokens=settings.max_completion_length,
                temperature=temperature,
            ),
        )


@contextmanager
def progress_bar(console: Console, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; gives what takes the number of deals done."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(description, total=total)
        yield lambda done: progress.update(bar, completed=done)
