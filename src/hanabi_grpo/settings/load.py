"""Find each setting's value: the shell over `.env` over the profile over the default; refuse
misspelt names.
"""

import difflib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings.defaults import installed_device
from hanabi_grpo.settings.game import HANABI, game_values
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.partners import read_pool
from hanabi_grpo.settings.sources import DOTENV, PROFILE, SHELL, Source, find, read_sources
from hanabi_grpo.settings.values import is_loopback
from hanabi_grpo.settings.variables import PASSED_THROUGH, Variable

ENV = "HANABI_ENV"
_PREFIX = "HANABI_"
_KEY_LENGTH = 16
_SHORT = 7
"""Letters below which only a moved letter counts: MODE, SPEED and PORTS are words of their own."""
_OTHERS = frozenset({"VLLM_MODEL", "WANDB_MODEL"})
"""Names of other software that are one letter from a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings and where each value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Field name to "shell", ".env", "profile", "default", "default (cpu)" or "default (gpu)"."""
    passed_through: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Set variables of PASSED_THROUGH: name to (value, origin)."""
    dotenv_environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What `.env` and the profile hold for other software (keys of trackers among it), unless the
    shell does.
    """


def load_settings(
    environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)
) -> LoadedSettings:
    """Resolve every setting of the shell (`environ`; None: this process's), `.env` and the profile
    that they name.

    Raises: SettingsError: A profile that is not there, unknown `HANABI_*` names and bad values, the
        latter two all in one message.
    """
    sources = read_sources(environ, dotenv)
    env = (find(sources, ENV) or (HANABI,))[0]
    try:
        known = variables(env)
    except SettingsError as error:
        raise SettingsError(
            _with_place(f"HANABI_ENV={str(error).removeprefix('env=')}", sources)
        ) from error
    problems = _unknown_names(
        {name: source.place for source in reversed(sources) for name in source.values}, env
    )
    device, reason = installed_device()
    given: dict[str, Any] = {"device": device, "device_reason": reason}
    origins: dict[str, str] = {}
    for variable in known:
        origins[variable.field] = (
            "default" if variable.cpu == variable.gpu else f"default ({device})"
        )
        if found := find(sources, variable.env):
            given[variable.field], origins[variable.field] = found[0], found[1].origin
    settings, bad = _validate(given, known)
    problems += [_with_place(problem, sources) for problem in bad]
    if problems or settings is None:
        raise SettingsError("\n".join(problems))
    names = {variable.env for variable in known}
    shell, *files = sources
    return LoadedSettings(
        settings=settings,
        origins=origins,
        passed_through={
            name: (found[0], found[1].origin)
            for name in PASSED_THROUGH
            if (found := find(sources, name))
        },
        dotenv_environ={
            name: value
            for source in reversed(files)
            for name, value in source.values.items()
            if name not in names and name not in shell.values
        },
    )


def misspelt_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that are one letter from a setting, and the setting that each was meant for.

    One letter is missing, added, wrong, or moved a little; case and underscores do not count. A
    setting that is itself among the names was not meant.

    Example:
        misspelt_names(["MAX_STEP", "PORTS", "PATH"]) == {"MAX_STEP": "MAX_STEPS"}
    """
    known = {
        _letters(env): env for env in (*(variable.env for variable in variables()), *PASSED_THROUGH)
    }
    given = set(names)
    found = {}
    for name in sorted(given - set(known.values()) - _OTHERS):
        letters = _letters(name)
        meant = known.get(letters) if len(letters) >= _SHORT else None
        meant = meant or next(
            (env for right, env in known.items() if _is_slip(letters, right)), None
        )
        if meant and meant not in given:
            found[name] = meant
    return found


def check_names(environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)) -> None:
    """Refuse variables of the shell (`environ`; None: this process's), `.env` and the profile that
    look misspelt.
    """
    sources = read_sources(environ, dotenv)
    places = {name: source for source in reversed(sources) for name in source.values}
    lines = []
    for name, meant in misspelt_names(places).items():
        if not name.upper().startswith(_PREFIX):  # those are refused as unknown names
            source = places[name]
            away = (
                f"unset {name}"
                if source.origin == SHELL
                else f"remove its line from {source.place}"
            )
            lines.append(
                f"{name} (from {source.place}): no such setting; did you mean {meant}? Rename it; "
                "if it is meant for "
                f"other software, keep it from this command: {away}."
            )
    if lines:
        raise SettingsError("\n".join(lines))


def read_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings that `write_settings` left in a run folder; those that came after it have
    their defaults.

    The file holds no secrets; they are taken from the environment (None: this process's). A
    SettingsError where it is missing or not such a file."""
    source = os.environ if environ is None else environ
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        values, origins = dict(data["settings"]), dict(data["origins"])
        known = variables(values.get(ENV, HANABI))
        given = {"device": data["device"], "device_reason": data["device_reason"]}
        for variable in known:
            if variable.secret:
                given[variable.field] = source.get(variable.env) or None
            elif variable.env in values:
                given[variable.field] = values[variable.env]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path}: not a settings file of this version ({error!r}); hanabi-grpo train writes "
            "one."
        ) from error
    settings, problems = _validate(given, known)
    if problems or settings is None:
        raise SettingsError(f"{path}:\n" + "\n".join(problems))
    explicit = {
        variable.field
        for variable in known
        if not origins.get(variable.env, "default").startswith("default")
    }
    settings.model_fields_set.intersection_update(explicit)
    return settings


def _unknown_names(names: Mapping[str, str], env: str) -> list[str]:
    # Without the prefix that all share, and that would make any two names look alike.
    ours = {variable.env.removeprefix(_PREFIX): variable.env for variable in variables(env)}
    problems = []
    for name, origin in names.items():
        bare = name.upper().removeprefix(_PREFIX)
        if not name.upper().startswith(_PREFIX) or name in ours.values():
            continue
        close = difflib.get_close_matches(bare, ours, n=1)
        hint = (
            f"did you mean {ours[close[0]]}?"
            if close
            else "hanabi-grpo settings lists what there is."
        )
        if bare not in ours and (
            owners := [one for one in registry.names() if bare.lower() in _fields_of(one)]
        ):
            hint = (
                f"it belongs to {' and '.join(owners)}, and {ENV}={env}; unset it, or set "
                f"{ENV}={owners[0]}."
            )
        problems.append(f"{name} (from {origin}): no such setting; {hint}")
    return problems


def _fields_of(env: str) -> Collection[str]:
    try:
        return registry.get(env).Config.model_fields
    except SettingsError:
        return ()  # a package that cannot be loaded


def _with_place(problem: str, sources: Sequence[Source]) -> str:
    # The line of a profile was not typed by whoever reads this.
    found = find(sources, problem.partition("=")[0])
    return (
        f"{problem} It is in {found[1].place}." if found and found[1].origin == PROFILE else problem
    )


def _validate(
    given: Mapping[str, Any], known: Sequence[Variable]
) -> tuple[Settings | None, list[str]]:
    """Return the settings, None where a value is bad, and a sentence for each problem."""
    bad: set[str] = set()
    try:
        game_values(given, Settings.model_fields.keys())
    except ValidationError as error:
        bad = {str(item["loc"][0]) for item in error.errors(include_input=False)}
    except HanabiGrpoError as error:
        return None, [_of_the_game(given, known, error)]
    settings = None
    try:
        settings = Settings.model_validate(
            {name: value for name, value in given.items() if name not in bad}
        )
    except ValidationError as error:
        # pydantic makes no defaults once a given value is bad.
        bad |= {str(item["loc"][0]) for item in error.errors(include_input=False)} & given.keys()
    shown = {
        one: "********" if one.secret else given[one.field] for one in known if one.field in bad
    }
    problems = [f"{one.env}={value!r}: {one.allowed}." for one, value in shown.items()]
    if problems or settings is None:
        return None, problems
    return settings, _cross_checks(settings, known)


def _of_the_game(given: Mapping[str, Any], known: Sequence[Variable], error: Exception) -> str:
    fields = registry.get(given.get("env", HANABI)).Config.model_fields
    said = [
        f"{one.env}={given[one.field]!r}"
        for one in known
        if one.field in fields and one.field in given
    ]
    # Without the field and the value that the error begins with: they are among those.
    reason = re.sub(r"^(env_config: )?(\w+=[^:]*: )?", "", str(error))
    return f"{' with '.join(said) or ENV}: {reason}"


def _cross_checks(settings: Settings, known: Sequence[Variable]) -> list[str]:
    problems = []
    try:
        setup = settings.setup()
        if setup.config.preset not in setup.environment.presets:
            known_ones = ", ".join(setup.environment.presets)
            raise SettingsError(f"no such preset of {settings.env}; allowed are {known_ones}.")
    except HanabiGrpoError as error:
        given = {name: getattr(settings, name) for name in settings.model_fields_set}
        problems.append(_of_the_game(given, known, error))
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    if not is_loopback(settings.host) and len(key) < _KEY_LENGTH:
        has = f"one of {_KEY_LENGTH} characters or more; this one has {len(key)}" if key else "one"
        problems.append(
            f"HANABI_HOST={settings.host!r}: an address that other machines reach needs "
            f"HANABI_API_KEY, {has}. Set the "
            'same in both terminals, e.g. export HANABI_API_KEY="$(openssl rand -hex 16)", or '
            "listen on 127.0.0.1."
        )
    if settings.partners:
        try:
            read_pool(settings)
        except SettingsError as error:
            problems.append(str(error))
    return problems


def _letters(name: str) -> str:
    return name.upper().replace("_", "")


def _is_slip(name: str, right: str) -> bool:
    """Tell whether a name is one letter from the right one: both are the same without one
    letter.
    """
    if name == right or (len(right) < _SHORT and sorted(name) != sorted(right)):
        return False
    return bool(_cut(name) & _cut(right))


def _cut(name: str) -> set[str]:
    return {name, *(name[:index] + name[index + 1 :] for index in range(len(name)))}
