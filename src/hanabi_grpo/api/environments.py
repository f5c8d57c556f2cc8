"""`make_env`: an environment with its settings."""

from typing import Any

from hanabi_grpo.api.settings import read_given
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Environment, Setup
from hanabi_grpo.errors import SettingsError, did_you_mean, shown
from hanabi_grpo.settings.defaults import installed_device
from hanabi_grpo.settings.game import config_defaults


def make_env(
    env: str | Environment[Any] = "hanabi", *, preset: str | None = None, **config: Any
) -> Setup[Any]:
    """Return an environment with its settings, for `play`, `evaluate` and `Trainer`.

    Args:
        env: Name of an environment, as in HANABI_ENV; or an environment object, which does not have
            to be installed for scripts to play it.
        preset: A preset of the environment, e.g. a board of Hanabi; None: as in training.
        **config: Other settings of the game, by the names of its Config's fields. Omitted settings
            come from the environment variables, or else are the defaults, as for the commands.

    Raises:
        SettingsError: There is no such environment, preset or field, a value is not allowed, or
            `env` is neither a name nor an environment.

    Example:
        env = hg.make_env("hanabi", preset="laptop")
        env.spec.num_players == 2
        three = hg.make_env("hanabi", preset="mini", players=3)
    """
    if isinstance(env, str):
        fields = registry.get(env).Config.model_fields
        for name in config:
            if name not in fields:
                raise SettingsError(
                    f"make_env({env!r}, {name}=…): not a setting of this environment; "
                    f"{did_you_mean(name, fields)}its settings: {', '.join(fields)}."
                )
        if preset is not None:
            config["preset"] = preset
        return read_given(env=env, **config).settings.setup()
    # A protocol cannot be checked with isinstance.
    if getattr(env, "Config", None) is None:
        raise SettingsError(
            f"env={shown(env)}: give the name of an environment, or an environment object."
        )
    device, _ = installed_device()
    chosen = {"device": device, "preset": preset or next(iter(env.presets))}
    values = config_defaults(env, {**config, **chosen})
    made = Setup(env, env.Config.parse({**values, **config}))
    # Raises an error for fields that contradict each other.
    _ = made.spec
    return made
