"""Settings as keyword arguments or a mapping, instead of environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr, TypeAdapter, ValidationError

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.config import EnvConfig
from hanabi_grpo.errors import SettingsError, did_you_mean, shown
from hanabi_grpo.settings import PASSED_THROUGH, LoadedSettings, Settings, load_settings, variables
from hanabi_grpo.settings.game import HANABI, readable_type
from hanabi_grpo.settings.instructions import read_instruction
from hanabi_grpo.settings.names import ENV, PREFIX
from hanabi_grpo.settings.sources import expand_home
from hanabi_grpo.settings.variables import typed

GivenSettings = Settings | Mapping[str, Any] | None
"""Settings of a run, a mapping of names to values, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Settings that a caller gave, over those of this process's environment."""

    loaded: LoadedSettings
    environ: Mapping[str, str]
    """The given settings as environment variables, for other processes."""

    @property
    def settings(self) -> Settings:
        """Every setting with its value."""
        return self.loaded.settings

    def has(self, *fields: str) -> bool:
        """Tell whether any of these settings is given, by the caller or by the environment."""
        return any(not self.loaded.origins[field].startswith("default") for field in fields)


def read_given(
    settings: GivenSettings = None,
    *,
    env: Setup[Any] | str | None = None,
    below: Mapping[str, str] | None = None,
    **given: Any,
) -> Given:
    """Resolve settings; given ones take precedence over the shell, `.env` and the profile.

    Args:
        settings: Settings, or a mapping of names to values.
        env: The environment: its name, or the result of `make_env`, whose fields are settings too
            and must not be given other values.
        below: Defaults for settings that the caller does not give; they take precedence over the
            variables of this process.
        **given: Further settings. A setting has the name of its variable (docs/settings.md), or
            that name in lower case without "hanabi_": `MAX_STEPS` or `max_steps`, `HANABI_PRESET`
            or `preset`. None means unset.

    Raises:
        SettingsError: A name is unknown or given twice, a value is not allowed, or it differs from
            that of `env`.
    """
    values: dict[str, Any] = {}
    if isinstance(settings, Settings):
        for variable in variables(settings.env):
            if variable.field in settings.model_fields_set:
                values[variable.env] = getattr(settings, variable.field)
    elif settings is not None:
        values.update(settings)
    for name, value in given.items():
        if name in values:
            raise SettingsError(f"{name}={shown(value)}: given twice; remove one of them.")
        values[name] = value
    if isinstance(env, Setup):
        values = {**without_fields_of(env, values), **_fields_of(env)}
    elif env is not None:
        if values.get("env", env) != env:
            raise SettingsError(f"env={shown(env)}: given twice; remove one of them.")
        values["env"] = env
    environ = {**(below or {}), **_as_variables(values, below or {})}
    return Given(loaded=load_settings({**os.environ, **environ}), environ=environ)


def without_fields_of(env: Setup[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings without those that an environment already has.

    Args:
        env: The environment.
        values: Settings by the names of their variables or fields.

    Raises:
        SettingsError: A setting of the game differs from the environment's, or this game has no
            such setting.
    """
    own = {"env": env.env, "players": env.spec.num_players, **dict(env.config)}
    other_fields = registry.get(os.environ.get(ENV) or HANABI).Config.model_fields
    others = {}
    for name, value in values.items():
        field = name.removeprefix(PREFIX).lower() if name.startswith(PREFIX) else name
        if field in own:
            if not _is_same(env.config, field, value, own[field]):
                raise SettingsError(
                    f"{name}={shown(value)} with env={env.spec.preset}: this environment has "
                    f"{field}={shown(own[field])}; give it to make_env instead."
                )
        elif field in other_fields and field not in Settings.model_fields:
            raise SettingsError(
                f"{name}={shown(value)} with env={env.spec.preset}: not a setting of {env.env}; "
                "leave it out."
            )
        else:
            others[name] = value
    return others


def _is_same(config: EnvConfig, field: str, given: Any, own: Any) -> bool:
    """Tell whether a given value, which may be typed text, is the environment's own.

    Args:
        config: The environment's config.
        field: Name of the setting.
        given: The given value.
        own: The environment's value.
    """
    info = type(config).model_fields.get(field)
    if info is None:
        return typed(given) == typed(own)
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        # As in a shell, an empty text means unset.
        given = expand_home(given) or None
    if field == "instruction":
        given = read_instruction(given)
    try:
        read = TypeAdapter(readable_type(info)).validate_python(given)
    except ValidationError:
        return False
    return bool(read == own)


def _fields_of(env: Setup[Any]) -> dict[str, Any]:
    """Return environment, preset, and the fields whose values differ from the defaults."""
    chosen = {"env": env.env, "preset": env.spec.preset}
    plain = load_settings({**os.environ, **_as_variables(chosen, {})}).settings.setup()
    plain_row = plain.config.model_dump(mode="json")
    for name, value in env.config.model_dump(mode="json").items():
        if value != plain_row.get(name):
            chosen[name] = value
    return chosen


def _as_variables(values: Mapping[str, Any], below: Mapping[str, str]) -> dict[str, str]:
    """Return settings by the names of their variables, with values as a user would type them."""
    given_env = values.get("env") or values.get(ENV)
    env = given_env or below.get(ENV) or os.environ.get(ENV) or HANABI
    by_name: dict[str, str] = {name: name for name in PASSED_THROUGH}
    for variable in variables(str(env)):
        by_name[variable.env] = variable.env
        by_name[variable.field] = variable.env
    environ: dict[str, str] = {}
    for name, value in values.items():
        if name not in by_name:
            known = [other for other in by_name if other.islower() or name.isupper()]
            hint = did_you_mean(name.removeprefix(PREFIX.lower()), known)
            raise SettingsError(
                f"{name}={shown(value)}: no such setting; {hint}hanabi-grpo settings lists them: "
                "use the variable's name, or that in lower case without hanabi_, e.g. max_steps."
            )
        variable_name = by_name[name]
        if variable_name in environ:
            raise SettingsError(f"{name}={shown(value)}: given twice; remove one of them.")
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        elif isinstance(value, os.PathLike):
            value = os.fspath(value)
        environ[variable_name] = typed(value)
    return environ
