"""Find each setting's value: the shell over `.env` over the default."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream
from pydantic import ValidationError

from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.settings.device import installed_device
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.variables import PASSED_THROUGH, is_secret, variables


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings and where each value came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Field name to "shell", ".env", "default", "default (cpu)" or "default (gpu)"."""
    passed_through: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Set variables of PASSED_THROUGH: name to (value, origin)."""
    dotenv_environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What `.env` holds for other software (keys of trackers and hubs among it) and the shell does not set."""


def load_settings(environ: Mapping[str, str] | None = None, dotenv: Path = Path(".env")) -> LoadedSettings:
    """Resolve every setting. An empty value counts as unset.

    Args:
        environ: The shell's variables; None: this process's.
        dotenv: File of NAME=value lines; may be missing.

    Raises:
        SettingsError: Unknown `HANABI_*` names and bad values, all of them in one message.
    """
    shell = {name: value.strip() for name, value in (os.environ if environ is None else environ).items()}
    file = _read_dotenv(dotenv)
    shell, file = ({name: value for name, value in source.items() if value} for source in (shell, file))
    known = variables(Settings)
    problems = _unknown_names({**dict.fromkeys(file, str(dotenv)), **dict.fromkeys(shell, "shell")})
    device = installed_device()
    given: dict[str, Any] = {"device": device.kind, "device_reason": device.reason}
    origins: dict[str, str] = {}
    for variable in known:
        origin = "shell" if variable.env in shell else ".env" if variable.env in file else None
        same = variable.cpu == variable.gpu
        origins[variable.field] = origin or ("default" if same else f"default ({device.kind})")
        if origin:
            given[variable.field] = shell.get(variable.env) or file[variable.env]
    settings, bad = _validate(given)
    problems += bad
    if settings is not None:
        problems += _cross_checks(settings)
    if problems or settings is None:
        raise SettingsError("\n".join(problems))
    names = {variable.env for variable in known}
    return LoadedSettings(
        settings=settings,
        origins=origins,
        passed_through={
            name: (shell[name], "shell") if name in shell else (file[name], ".env")
            for name in PASSED_THROUGH
            if name in shell or name in file
        },
        dotenv_environ={name: value for name, value in file.items() if name not in names and name not in shell},
    )


def read_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings that `write_settings` left in a run folder.

    The file holds no secrets; they are taken from the environment (None: this process's).

    Raises:
        SettingsError: The file is missing or not such a file.
    """
    source = os.environ if environ is None else environ
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        values, origins = dict(data["settings"]), dict(data["origins"])
        given = {"device": data["device"], "device_reason": data["device_reason"]}
        for variable in variables(Settings):
            value = values[variable.env]
            secret = is_secret(Settings.model_fields[variable.field])
            given[variable.field] = (source.get(variable.env) or None) if secret else value
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path}: not a settings file of this version ({error!r}); hanabi-grpo train writes one."
        ) from error
    settings, problems = _validate(given)
    if problems or settings is None:
        raise SettingsError(f"{path}:\n" + "\n".join(problems))
    explicit = {
        variable.field for variable in variables(Settings) if not origins.get(variable.env, "").startswith("default")
    }
    return Settings.model_construct(_fields_set=explicit, **dict(settings))


def _read_dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error}); it holds NAME=value lines in UTF-8.") from error
    found = {}
    for line in parse_stream(StringIO(text)):
        if line.error:
            raise SettingsError(f"{path} line {line.original.line}: not a NAME=value line. Example: HANABI_PLAYERS=2")
        if line.key:
            found[line.key] = (line.value or "").strip()
    return found


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
    if not _is_loopback(settings.host) and settings.api_key is None:
        problems.append(
            f"HANABI_HOST={settings.host!r}: an address that other machines reach needs HANABI_API_KEY; "
            "set one in both terminals, or listen on 127.0.0.1."
        )
    if settings.preset is not None:
        # Imported here, since it loads OpenSpiel, which few settings need.
        from hanabi_grpo.games import make_spec

        try:
            make_spec(settings.preset, settings.players)
        except GameParameterError as error:
            problems.append(f"HANABI_PRESET={settings.preset!r} with HANABI_PLAYERS={settings.players}: {error}")
    if settings.partners:
        from hanabi_grpo.partners import read_pool

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
