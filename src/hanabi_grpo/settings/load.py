"""Find each setting's value: --set over the shell over `.env` over the profile over the default.

Unknown names, misspelled names and invalid values are refused, all in one message.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import no_such_preset
from hanabi_grpo.errors import HanabiGrpoError, SettingsError, shown
from hanabi_grpo.settings.defaults import installed_device, is_local_model
from hanabi_grpo.settings.game import HANABI, game_values
from hanabi_grpo.settings.judge import check_judge
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.names import ENV, unknown_names
from hanabi_grpo.settings.partners import read_pool
from hanabi_grpo.settings.saved import ORIGINS, VALUES, read_settings_document
from hanabi_grpo.settings.sleep import check_sleep
from hanabi_grpo.settings.sources import (
    DOTENV,
    PROFILE,
    Source,
    Sources,
    expand_home,
    find,
    read_sources,
)
from hanabi_grpo.settings.values import why_key_is_needed
from hanabi_grpo.settings.variables import PASSED_THROUGH, Variable

_MASK = "********"
"""Stands for a secret in messages."""
_DEFAULT = "default"
"""Prefix of the origin of a value that was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings and where each value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Field name to "--set", "shell", ".env", "profile", "default", "default (cpu)" or "default
    (gpu)"."""
    passed_through: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Set variables of PASSED_THROUGH: name to (value, origin)."""
    dotenv_environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of `.env` and the profile for other software, including keys of trackers.

    Variables that the shell sets are not included.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Validated:
    """Settings, or the reasons why they are invalid."""

    settings: Settings | None
    """None if a value is invalid."""
    problems: list[str]
    """A sentence for each problem."""


def load_settings(
    environ: Mapping[str, str] | None = None,
    dotenv: Path = Path(DOTENV),
    *,
    device: tuple[str, str] | None = None,
) -> LoadedSettings:
    """Resolve every setting from --set, the shell, `.env` and the profile that they name.

    Args:
        environ: The shell's variables; None: this process's.
        dotenv: Path of `.env`; the file may be missing.
        device: The device whose defaults hold and the reason; None: that of the installed engine.

    Raises:
        SettingsError: The profile is missing; or there are unknown `HANABI_*` names or invalid
            values, all of them in one message.
    """
    all_sources = read_sources(environ, dotenv)
    sources = all_sources.ordered
    given_env = find(sources, ENV)
    env = given_env.value if given_env else HANABI
    try:
        known = variables(env)
    except SettingsError as error:
        problem = f"{ENV}={str(error).removeprefix('env=')}"
        raise SettingsError(_with_source(problem, sources)) from error

    device_name, reason = device or installed_device()
    given: dict[str, Any] = {"device": device_name, "device_reason": reason}
    origins: dict[str, str] = {}
    for variable in known:
        value = find(sources, variable.env)
        if value is not None:
            text = value.value
            given[variable.field] = text if variable.secret else expand_home(text)
            origins[variable.field] = value.source.origin
        elif variable.cpu == variable.gpu:
            origins[variable.field] = _DEFAULT
        else:
            origins[variable.field] = f"{_DEFAULT} ({device_name})"

    problems = unknown_names(sources, env)
    validated = _validate(given, known)
    for problem in validated.problems:
        problems.append(_with_source(problem, sources))
    if problems or validated.settings is None:
        raise SettingsError("\n".join(problems))
    return LoadedSettings(
        settings=validated.settings,
        origins=origins,
        passed_through=_passed_through(sources),
        dotenv_environ=_for_other_software(all_sources, known),
    )


def is_made_by_server(loaded: LoadedSettings) -> bool:
    """Tell whether MODEL is a tiny model that terminal 1 makes before it starts, and has not yet.

    So the trainer may be started first. A folder that the user named must already exist.
    """
    name = loaded.settings.model
    is_default = loaded.origins["model"].startswith("default")
    return is_default and is_local_model(name) and not Path(name).is_dir()


def read_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings that `train` left in a run folder.

    Settings that are newer than the file get their defaults. The file holds no secrets; they come
    from the environment.

    Args:
        path: A run's settings.json.
        environ: The environment; None: this process's.

    Raises:
        SettingsError: The file is missing, or not a settings file.
    """
    source = os.environ if environ is None else environ
    try:
        document = read_settings_document(path)
        values = dict(document[VALUES])
        origins = dict(document[ORIGINS])
        known = variables(values.get(ENV, HANABI))
        given = {"device": document["device"], "device_reason": document["device_reason"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path}: not a settings file of this version ({error!r}); hanabi-grpo train writes "
            "one."
        ) from error
    for variable in known:
        if variable.secret:
            given[variable.field] = source.get(variable.env) or None
        elif variable.env in values:
            given[variable.field] = values[variable.env]

    validated = _validate(given, known)
    if validated.problems or validated.settings is None:
        raise SettingsError(f"{path}:\n" + "\n".join(validated.problems))
    # Every value is in the file; those that some source set count as given.
    given_fields = set()
    for variable in known:
        if not origins.get(variable.env, _DEFAULT).startswith(_DEFAULT):
            given_fields.add(variable.field)
    validated.settings.model_fields_set.intersection_update(given_fields)
    return validated.settings


def _passed_through(sources: Sequence[Source]) -> dict[str, tuple[str, str]]:
    """Return the set variables of PASSED_THROUGH with their value and origin."""
    passed = {}
    for name in PASSED_THROUGH:
        value = find(sources, name)
        if value is not None:
            passed[name] = (value.value, value.source.origin)
    return passed


def _for_other_software(sources: Sources, known: Sequence[Variable]) -> dict[str, str]:
    """Return variables of `.env` and the profile that are not settings and not in the shell."""
    ours = {variable.env for variable in known}
    here = {**sources.shell.values, **sources.command_line.values}
    others = {}
    for name, value in {**sources.profile.values, **sources.dotenv.values}.items():
        if name not in ours and name not in here:
            others[name] = value
    return others


def _with_source(problem: str, sources: Sequence[Source]) -> str:
    """Return a problem, "NAME=value: …", with the profile that the value comes from.

    Whoever reads the message may not have written the profile.
    """
    name = problem.partition("=")[0]
    value = find(sources, name)
    if value is not None and value.source.origin == PROFILE:
        return f"{problem} It is in {value.source.label_of(name)}."
    return problem


def _validate(given: Mapping[str, Any], known: Sequence[Variable]) -> _Validated:
    """Check given values one by one and together.

    Args:
        given: Values by field, also "device" and "device_reason".
        known: All variables.
    """
    bad_fields: set[str] = set()
    try:
        game_values(given, Settings.model_fields.keys())
    except ValidationError as error:
        bad_fields |= _fields_of(error)
    except HanabiGrpoError as error:
        return _Validated(settings=None, problems=[_game_problem(given, known, error)])

    # pydantic makes no defaults once a given value is invalid, so the game's invalid values are
    # left out.
    usable = {name: value for name, value in given.items() if name not in bad_fields}
    settings = None
    try:
        settings = Settings.model_validate(usable)
    except ValidationError as error:
        bad_fields |= _fields_of(error) & given.keys()
    problems = []
    for variable in known:
        if variable.field in bad_fields:
            value = _MASK if variable.secret else given[variable.field]
            problems.append(f"{variable.env}={value!r}: {variable.allowed}.")
    if problems or settings is None:
        return _Validated(settings=None, problems=problems)
    return _Validated(settings=settings, problems=_cross_checks(settings, known))


def _fields_of(error: ValidationError) -> set[str]:
    return {str(item["loc"][0]) for item in error.errors(include_input=False)}


def _game_problem(given: Mapping[str, Any], known: Sequence[Variable], error: Exception) -> str:
    """Return a sentence on settings of the game that contradict each other.

    Args:
        given: Values by field.
        known: All variables.
        error: Why they do not go together.
    """
    fields = registry.get(given.get("env", HANABI)).Config.model_fields
    values = []
    given_values = set()
    for variable in known:
        if variable.field in fields and variable.field in given:
            value = given[variable.field]
            values.append(f"{variable.env}={shown(value)}")
            given_values |= {str(value), shown(value)}
    reason = str(error).removeprefix("env_config: ")
    # Remove the leading name and value if the value is a given one. Any other value is a line of a
    # file, or a file of a folder, and stays.
    beginning = re.match(r"\w+=(?P<value>[^:]*): ", reason)
    if beginning is not None and beginning["value"] in given_values:
        reason = reason[beginning.end() :]
    return f"{' with '.join(values) or ENV}: {reason}"


def _cross_checks(settings: Settings, known: Sequence[Variable]) -> list[str]:
    """Return a sentence for each problem of settings that are valid individually."""
    problems = []
    try:
        _check_preset(settings)
    except HanabiGrpoError as error:
        given = {name: getattr(settings, name) for name in settings.model_fields_set}
        problems.append(_game_problem(given, known, error))

    key = settings.api_key.get_secret_value() if settings.api_key else ""
    reason = why_key_is_needed(settings.host, key)
    if reason is not None:
        problems.append(
            f"HANABI_HOST={settings.host!r}: {reason}. Set the same key in both terminals, e.g. "
            'export HANABI_API_KEY="$(openssl rand -hex 16)", or listen on 127.0.0.1.'
        )
    for check in (check_judge, check_sleep):
        try:
            check(settings)
        except HanabiGrpoError as error:
            problems.append(str(error))
    if settings.partners:
        try:
            read_pool(settings)
        except SettingsError as error:
            problems.append(str(error))
    return problems


def _check_preset(settings: Settings) -> None:
    setup = settings.setup()
    if not setup.environment.knows_preset(setup.config.preset):
        raise SettingsError(no_such_preset(setup.environment, setup.config.preset))
