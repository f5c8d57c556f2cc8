"""Settings resolved as far as they go: each problem becomes a finding, the rest of the doctor runs on."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dotenv import dotenv_values

from hanabi_grpo.doctor.check import Check, fail, ok, warn
from hanabi_grpo.doctor.context import Context
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import PASSED_THROUGH, LoadedSettings, Settings, load_settings, variables

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?==| \(from)")
_NO_FILE = Path("/nonexistent/.env")
_ALIKE = 0.88
"""Share of equal letters from which a name is taken for a slip; other software's names stay below it."""


def resolve_settings(environ: Mapping[str, str], dotenv: Path = Path(".env")) -> tuple[LoadedSettings, tuple[str, ...]]:
    """Resolve every setting, leaving out what is refused.

    Returns:
        The settings, and each problem as `load_settings` words it. A refused variable has its default.

    Raises:
        SettingsError: The settings are refused whatever is left out.
    """
    try:
        return load_settings(environ, dotenv), ()
    except SettingsError as error:
        problems = str(error).splitlines()
    shell = {name: value for name, value in environ.items() if value.strip()}
    file = {name: value for name, value in _read(dotenv).items() if name not in shell and value}
    refused = _names(problems)
    while True:
        kept = {name: value for name, value in {**file, **shell}.items() if name not in refused}
        try:
            return _with_origins(load_settings(kept, _NO_FILE), shell, file), tuple(problems)
        except SettingsError as error:
            more = str(error).splitlines()
            if not _names(more) - refused:
                raise
            refused |= _names(more)
            problems += more


def settings_checks(context: Context, problems: Sequence[str], dotenv: str = ".env") -> Iterator[Check]:
    """Tell what was given, or every problem with it."""
    for problem in problems:
        name = next(iter(_names([problem])), "")
        if not name:
            yield fail("settings", problem, f"correct that line of {dotenv}; an example: HANABI_PLAYERS=2")
            continue
        meant = re.search(r"did you mean (\w+)\?", problem)
        yield fail("settings", problem, _remedy(name, meant[1] if meant else None, name in context.shell, dotenv))
    if not problems:
        origins = context.loaded.origins
        given = [item.env for item in variables(Settings) if not origins[item.field].startswith("default")]
        device = f"{context.settings.device} defaults, because {context.settings.device_reason}"
        yield ok("settings", f"{', '.join(given)} given, else {device}" if given else device)


def name_checks(context: Context) -> Iterator[Check]:
    """Warn of variables whose names are nearly those of settings; HANABI_ names are refused by the settings."""
    known = [*(variable.env for variable in variables(Settings)), *PASSED_THROUGH]
    plain = {env.replace("_", ""): env for env in known}
    slips = []
    for name in sorted(set(context.environ) - set(known)):
        if name.upper().startswith("HANABI_"):
            continue
        close = difflib.get_close_matches(name.upper().replace("_", ""), plain, n=1, cutoff=_ALIKE)
        # The meant one is set too: then this name is on purpose.
        if close and not context.environ.get(plain[close[0]]):
            slips.append((name, plain[close[0]]))
    if slips:
        yield warn(
            "names",
            "; ".join(f"{name} is set, but the setting is {meant}" for name, meant in slips) + "; nothing reads it.",
            "\n".join(_rename(name, meant) for name, meant in slips),
        )
    else:
        yield ok("names", "no variable looks like a misspelt setting")


def _remedy(name: str, meant: str | None, in_shell: bool, dotenv: str) -> str:
    if meant:
        return _rename(name, meant) if in_shell else f"sed -i 's/^{name}=/{meant}=/' {dotenv}"
    show = f".venv/bin/hanabi-grpo settings --markdown | grep {name}"
    return (f"unset {name}" if in_shell else f"sed -i '/^{name}=/d' {dotenv}") + f"\n{show}"


def _rename(name: str, meant: str) -> str:
    return f'export {meant}="${name}"; unset {name}'


def _read(dotenv: Path) -> dict[str, str]:
    if not dotenv.is_file():
        return {}
    try:
        return {name: (value or "").strip() for name, value in dotenv_values(dotenv, interpolate=False).items()}
    except (OSError, UnicodeDecodeError):
        return {}  # load_settings has said so


def _names(problems: Sequence[str]) -> set[str]:
    return {match[1] for problem in problems if (match := _NAME.match(problem))}


def _with_origins(loaded: LoadedSettings, shell: Mapping[str, str], file: Mapping[str, str]) -> LoadedSettings:
    known = {variable.field: variable.env for variable in variables(Settings)}
    return replace(
        loaded,
        origins={
            field: ".env" if origin == "shell" and known[field] not in shell else origin
            for field, origin in loaded.origins.items()
        },
        passed_through={
            name: (value, "shell" if name in shell else ".env") for name, (value, _) in loaded.passed_through.items()
        },
        dotenv_environ={name: value for name, value in file.items() if name not in known.values()},
    )
