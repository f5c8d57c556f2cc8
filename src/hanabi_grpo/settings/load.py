"""Find each setting's value: the shell over `.env` over the profile over the default."""

import difflib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.settings.device import installed_device
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.sources import DOTENV, PROFILE, SHELL, Source, find, read_sources
from hanabi_grpo.settings.variables import PASSED_THROUGH, is_secret, variables

_KEY_LENGTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings and where each value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Field name to "shell", ".env", "profile", "default", "default (cpu)" or "default (gpu)"."""
    passed_through: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Set variables of PASSED_THROUGH: name to (value, origin)."""
    dotenv_environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What `.env` and the profile hold for other software (keys of trackers among it), unless the shell does."""


def load_settings(environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)) -> LoadedSettings:
    """Resolve every setting. An empty value counts as unset.

    Args:
        environ: The shell's variables; None: this process's.
        dotenv: File of NAME=value lines; may be missing.

    Raises:
        SettingsError: A profile that is not there, unknown `HANABI_*` names and bad values, the latter two all in one
            message.
    """
    return resolve(read_sources(environ, dotenv))


def resolve(sources: Sequence[Source], *, without: Collection[str] = ()) -> LoadedSettings:
    """Resolve every setting from what was read.

    Args:
        sources: An earlier one wins.
        without: Variables that are left out.

    Raises:
        SettingsError: As `load_settings`.
    """
    sources = [
        replace(source, values={name: value for name, value in source.values.items() if name not in without})
        for source in sources
    ]
    known = variables(Settings)
    problems = _unknown_names({name: source.place for source in reversed(sources) for name in source.values})
    device = installed_device()
    given: dict[str, Any] = {"device": device.kind, "device_reason": device.reason}
    origins: dict[str, str] = {}
    for variable in known:
        found = find(sources, variable.env)
        same = variable.cpu == variable.gpu
        origins[variable.field] = found[1].origin if found else "default" if same else f"default ({device.kind})"
        if found:
            given[variable.field] = found[0]
    settings, bad = _validate(given)
    problems += [_with_place(problem, sources) for problem in bad]
    if settings is not None:
        problems += _cross_checks(settings)
    if problems or settings is None:
        raise SettingsError("\n".join(problems))
    names = {variable.env for variable in known}
    passed = {name: found for name in PASSED_THROUGH if (found := find(sources, name))}
    in_shell = {name for source in sources if source.origin == SHELL for name in source.values}
    return LoadedSettings(
        settings=settings,
        origins=origins,
        passed_through={name: (value, source.origin) for name, (value, source) in passed.items()},
        dotenv_environ={
            name: value
            for source in reversed(sources)
            for name, value in source.values.items()
            if name not in names and name not in in_shell
        },
    )


def read_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings that `write_settings` left in a run folder.

    The file holds no secrets; they are taken from the environment (None: this process's). Settings that came after it
    have their defaults.

    Raises:
        SettingsError: The file is missing or not such a file.
    """
    source = os.environ if environ is None else environ
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        values, origins = dict(data["settings"]), dict(data["origins"])
        given = {"device": data["device"], "device_reason": data["device_reason"]}
        for variable in variables(Settings):
            if is_secret(Settings.model_fields[variable.field]):
                given[variable.field] = source.get(variable.env) or None
            elif variable.env in values:
                given[variable.field] = values[variable.env]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path}: not a settings file of this version ({error!r}); hanabi-grpo train writes one."
        ) from error
    settings, problems = _validate(given)
    if problems or settings is None:
        raise SettingsError(f"{path}:\n" + "\n".join(problems))
    given_names = {env for env, origin in origins.items() if not origin.startswith("default")}
    explicit = {variable.field for variable in variables(Settings) if variable.env in given_names}
    return Settings.model_construct(_fields_set=explicit, **dict(settings))


def _unknown_names(names: Mapping[str, str]) -> list[str]:
    known = [variable.env for variable in variables(Settings)]
    problems = []
    for name, origin in names.items():
        if name.upper().startswith("HANABI_") and name not in known:
            # Without the prefix that all share, and that would make any two names look alike.
            ours = {env.removeprefix("HANABI_"): env for env in known}
            close = difflib.get_close_matches(name.upper().removeprefix("HANABI_"), ours, n=1)
            hint = f"did you mean {ours[close[0]]}?" if close else "hanabi-grpo settings lists what there is."
            problems.append(f"{name} (from {origin}): no such setting; {hint}")
    return problems


def _with_place(problem: str, sources: Sequence[Source]) -> str:
    # The line of a profile was not typed by whoever reads this.
    found = find(sources, problem.partition("=")[0])
    return f"{problem} It is in {found[1].place}." if found and found[1].origin == PROFILE else problem


def _validate(given: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        by_field = {variable.field: variable for variable in variables(Settings)}
        problems = []
        for field_name in dict.fromkeys(str(item["loc"][0]) for item in error.errors(include_input=False)):
            if field_name not in given:
                continue  # pydantic makes no defaults once a given value is bad
            variable = by_field[field_name]
            secret = is_secret(Settings.model_fields[field_name])
            shown = "'********'" if secret else repr(given.get(field_name))
            problems.append(f"{variable.env}={shown}: {variable.allowed}.")
        return None, problems
    return settings, []


def _cross_checks(settings: Settings) -> list[str]:
    problems = []
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    if not _is_loopback(settings.host) and len(key) < _KEY_LENGTH:
        has = f"one of {_KEY_LENGTH} characters or more; this one has {len(key)}" if key else "one"
        problems.append(
            f"HANABI_HOST={settings.host!r}: an address that other machines reach needs HANABI_API_KEY, {has}. Set the "
            'same in both terminals, e.g. export HANABI_API_KEY="$(openssl rand -hex 16)", or listen on 127.0.0.1.'
        )
    # The default board fits the players.
    if "preset" in settings.model_fields_set and settings.preset is not None:
        # Imported here, since it loads OpenSpiel, which few settings need.
        from hanabi_grpo.envs.hanabi.rules import make_spec

        try:
            make_spec(settings.preset, settings.players)
        except GameParameterError as error:
            problems.append(f"HANABI_PRESET={settings.preset!r} with HANABI_PLAYERS={settings.players}: {error}")
    if settings.partners:
        from hanabi_grpo.settings.partners import read_pool

        try:
            read_pool(settings)
        except SettingsError as error:
            problems.append(str(error))
    return problems


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
