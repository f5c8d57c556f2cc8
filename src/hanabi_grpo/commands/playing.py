"""What commands that play share: options, the game from them and the settings, and the server of
the models.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from hanabi_grpo.client.lineups import SeatResolver
from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.console import print_json, sayer
from hanabi_grpo.commands.train import wait_for_server
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings
from hanabi_grpo.settings.game import default_preset

Env = Annotated[
    str | None, typer.Option(help="Environment, e.g. kuhn_poker; as in training when left out.")
]
Preset = Annotated[str | None, typer.Option(help="Preset of it; as in training when left out.")]
Players = Annotated[int | None, typer.Option(help="Players; as in training when left out.")]
Suite = Annotated[str, typer.Option(help="Stream of held-out tasks.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
OwnServer = Annotated[
    bool, typer.Option("--own-server", help="Start a rollout server for this command.")
]


def give_result(
    console: Console,
    document: Mapping[str, Any],
    tables: Iterable[RenderableType],
    *,
    out: Path | None,
    as_json: bool,
    kept: Mapping[str, Any] | None = None,
) -> None:
    """Write --out, with `kept` where that is another document, and print the document with --json,
    else its tables.

    `console` is `make_console(aside=as_json)`.
    """
    if out is not None:
        write_document(out, kept or document)
        sayer(console)(f"wrote {out}")
    if as_json:
        print_json(document)
        return
    for table in tables:
        console.print(table)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is played, and how models sample."""

    loaded: LoadedSettings
    game: Setup[Any]
    temperature: float

    @contextmanager
    def serving(self, console: Console, *, needed: bool, own: bool) -> Iterator[Served | None]:
        """Give the rollout server that models play on, once it is healthy, or `own` one; None where
        none is needed.
        """
        if not needed:
            yield None
            return
        with ExitStack() as stack:
            settings, game = self.loaded.settings, self.game
            if own:
                environ = {"HANABI_ENV": game.env, "HANABI_PRESET": game.spec.preset}
                if "players" in type(game.config).model_fields:
                    environ["HANABI_PLAYERS"] = str(game.spec.num_players)
                settings = stack.enter_context(
                    own_server(settings, sayer(console), environ=environ)
                )
            else:
                wait_for_server(self.loaded, console)
            client = stack.enter_context(RolloutClient.from_settings(settings))
            resolver, limit = SeatResolver(client, settings), settings.max_completion_length
            yield Served(
                client=client, resolver=resolver, max_tokens=limit, temperature=self.temperature
            )


def choose(
    env: str | None, preset: str | None, players: int | None, temperature: float | None
) -> Chosen:
    """Return what options and settings choose; SettingsError: no such game, a temperature that is
    negative or none.
    """
    loaded = load_settings()
    heat = loaded.settings.temperature if temperature is None else temperature
    if not 0 <= heat < float("inf"):
        raise SettingsError(f"--temperature {heat}: must be 0 (greedy) or more.")
    return Chosen(loaded, game_setup(loaded.settings, env, preset, players), heat)


def game_setup(
    settings: Settings, env: str | None, preset: str | None, players: int | None
) -> Setup[Any]:
    """Return the game as training plays it: of the dataset's row, or of the settings when an option
    chooses.

    Raises: SettingsError: The dataset has rows of several games and no option chooses, or there is
        no such game.
    """
    if preset is None and env is None:
        found = played_setups(training_rows(settings))
        if len(found) > 1:
            presets = ", ".join(dict.fromkeys(one.spec.preset for one in found))
            raise SettingsError(
                f"DATASET={settings.dataset}: holds several games ({presets}); choose one by "
                "--preset."
            )
        env, config = (
            found[0].env,
            found[0].config.model_dump() | ({"players": players} if players else {}),
        )
    else:
        if env not in (None, settings.env):
            settings = Settings(device=settings.device, env=registry.get(env).name)
        chosen = {"preset": preset or settings.preset or default_preset(dict(settings))}
        env, config = (
            settings.env,
            settings.config_row(chosen | ({"players": players} if players else {})),
        )
    game = registry.setup(env, {key: config[key] for key in registry.get(env).Config.model_fields})
    if players not in (None, game.spec.num_players):
        raise SettingsError(
            f"--players {players}: {game.env} {game.spec.preset} has {game.spec.num_players} "
            "players."
        )
    return game
