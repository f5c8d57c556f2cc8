"""The game to play and the server to play it on, as command options or arguments choose them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from hanabi_grpo.client.lineups import SeatResolver
from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import wait_for_first_server
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup, no_such_preset
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.run_folder import results_folder
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings
from hanabi_grpo.settings.defaults import reply_limit
from hanabi_grpo.settings.game import default_preset
from hanabi_grpo.terminal import sayer
from hanabi_grpo.token_filter import ALL_TOKENS

_WITHOUT_SERVER = "Or repeat this command with --own-server, and it starts a server for itself."
"""What else to do without a server; a line of the wait for one, and of the error at its end."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The game to play, and how models sample."""

    loaded: LoadedSettings
    """The settings, with where each value comes from."""
    game: Setup[Any]
    """Environment and configuration."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    is_of_several: bool = False
    """Whether the game is one of several in DATASET. A server that is started for the command is
    then not told a game: it reads DATASET itself."""

    @contextmanager
    def serving(
        self, console: Console, *, needed: bool, own: bool, model: str | None = None
    ) -> Iterator[Served | None]:
        """Connect to the rollout server that models play on, once it is healthy.

        Args:
            console: Where progress is reported.
            needed: Whether a model plays at all.
            own: Whether to start a server for this command instead of using the configured one.
            model: MODEL of that server; None: that of the settings.

        Yields:
            The connection; None where no server is needed.
        """
        if not needed:
            yield None
            return
        with ExitStack() as stack:
            settings = self.loaded.settings
            variables = self._game_variables()
            if model is not None:
                settings = settings.model_copy(update={"model": model})
                variables["MODEL"] = model
            if own:
                settings = stack.enter_context(
                    own_server(
                        settings,
                        sayer(console),
                        environ=variables,
                        folder=results_folder(settings),
                    )
                )
            else:
                wait_for_first_server(self.loaded, sayer(console), instead=_WITHOUT_SERVER)
            client = stack.enter_context(RolloutClient.from_settings(settings))
            yield Served(
                client=client,
                resolver=SeatResolver(client, settings),
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                token_filter=ALL_TOKENS if self.temperature == 0 else settings.token_filter,
                seed=settings.seed,
            )

    @property
    def max_tokens(self) -> int:
        """Maximum length of one reply: MAX_COMPLETION_LENGTH, or its default in the chosen game."""
        settings = self.loaded.settings
        if not self.loaded.origins["max_completion_length"].startswith("default"):
            return settings.max_completion_length
        return reply_limit(
            {
                "device": settings.device,
                "thinking": settings.thinking,
                "max_model_len": settings.max_model_len,
                "env": self.game.env,
                "preset": self.game.spec.preset,
            }
        )

    def _game_variables(self) -> dict[str, str]:
        """Return the environment variables with which this command's own server plays the game."""
        if self.is_of_several:
            return {}
        variables = {"HANABI_ENV": self.game.env, "HANABI_PRESET": self.game.spec.preset}
        if "players" in type(self.game.config).model_fields:
            variables["HANABI_PLAYERS"] = str(self.game.spec.num_players)
        return variables


def choose(
    env: str | None,
    preset: str | None,
    players: int | None,
    temperature: float | None,
    *,
    loaded: LoadedSettings | None = None,
    game: Setup[Any] | None = None,
) -> Chosen:
    """Return the game and the temperature that options and settings choose.

    Args:
        env: Option --env; None: not given, like the others.
        preset: Option --preset.
        players: Option --players.
        temperature: Option --temperature.
        loaded: The settings; None: those of this process.
        game: The game; None: as the other arguments and the settings say.

    Raises:
        SettingsError: There is no such game, or the temperature is negative or not finite.
    """
    loaded = loaded or load_settings()
    settings = loaded.settings
    chosen_temperature = _temperature(settings, temperature)
    if game is None:
        game = game_setup(settings, env, preset, players)
    return Chosen(loaded=loaded, game=game, temperature=chosen_temperature)


def choose_all(
    env: str | None, preset: str | None, players: int | None, temperature: float | None
) -> list[Chosen]:
    """Return every game that options and settings choose: without options, all games of DATASET.

    Args:
        env: Option --env; None: not given, like the others.
        preset: Option --preset.
        players: Option --players.
        temperature: Option --temperature.

    Raises:
        SettingsError: As `choose`.
    """
    loaded = load_settings()
    settings = loaded.settings
    setups = played_setups(training_rows(settings))
    if env is not None or preset is not None or len(setups) == 1:
        return [choose(env, preset, players, temperature, loaded=loaded)]
    games = []
    for setup in setups:
        game = _with_players(setup.env, setup.config.model_dump(), players)
        games.append(
            Chosen(
                loaded=loaded,
                game=game,
                temperature=_temperature(settings, temperature),
                is_of_several=True,
            )
        )
    return games


def _temperature(settings: Settings, given: float | None) -> float:
    """Return the given temperature, or else that of the settings."""
    temperature = settings.temperature if given is None else given
    if not 0 <= temperature < float("inf"):
        raise SettingsError(f"--temperature {temperature}: must be 0 (greedy) or more.")
    return temperature


def game_setup(
    settings: Settings, env: str | None, preset: str | None, players: int | None
) -> Setup[Any]:
    """Return the game as training plays it.

    It is the game of the dataset's rows, or of the settings when an option chooses one.

    Args:
        settings: The settings of training.
        env: Option --env; None: not given, like the others.
        preset: Option --preset.
        players: Option --players.

    Raises:
        SettingsError: The dataset has rows of several games and no option chooses, or there is
            no such game.
    """
    if preset is None and env is None:
        setup = _dataset_setup(settings)
        env = setup.env
        config = setup.config.model_dump()
    else:
        if env not in (None, settings.env):
            settings = Settings(device=settings.device, env=registry.get(env).name)
        env = settings.env
        options: dict[str, Any] = {
            "preset": preset or settings.preset or default_preset(dict(settings))
        }
        if players:
            options["players"] = players
        config = settings.config_row(options)
    setup = _with_players(env, config, players)
    name = setup.config.preset
    if not setup.environment.knows_preset(name):
        raise SettingsError(f"--preset {shown(name)}: {no_such_preset(setup.environment, name)}")
    return setup


def _with_players(env: str, config: dict[str, Any], players: int | None) -> Setup[Any]:
    """Return a game with another number of players, where one is given.

    Args:
        env: Name of the environment.
        config: Fields of its config; others are left out.
        players: Option --players; None: as in the config.
    """
    if players:
        config["players"] = players
    fields = registry.get(env).Config.model_fields
    try:
        game = registry.setup(env, {name: config[name] for name in fields if name in config})
    except SettingsError as error:
        # The user wrote no env_config here: the fields are named like the options.
        raise SettingsError(str(error).removeprefix("env_config: ")) from error
    if players not in (None, game.spec.num_players):
        raise SettingsError(
            f"--players {players}: {game.env} {game.spec.preset} has {game.spec.num_players} "
            "players."
        )
    return game


def _dataset_setup(settings: Settings) -> Setup[Any]:
    """Return the only game of the dataset; a SettingsError where it has several."""
    setups = played_setups(training_rows(settings))
    if len(setups) > 1:
        presets = ", ".join(dict.fromkeys(setup.spec.preset for setup in setups))
        raise SettingsError(
            f"DATASET={settings.dataset}: has several games ({presets}); choose one with --preset "
            "(Python: env=make_env(…))."
        )
    return setups[0]
