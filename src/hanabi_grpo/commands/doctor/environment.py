"""Settings resolved as far as they go: each problem becomes a finding, the rest of the doctor runs on."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings, variables
from hanabi_grpo.settings.load import resolve
from hanabi_grpo.settings.misspelt import misspelt_names
from hanabi_grpo.settings.sources import DOTENV, PROFILE, SHELL, read_sources

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?==| \(from)")


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
    sources = read_sources(environ, dotenv, tolerant=True)
    refused = _names(problems)
    while True:
        try:
            return resolve(sources, without=refused), tuple(problems)
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
            yield fail("settings", problem, f"correct {problem.partition(':')[0]}; an example: HANABI_PLAYERS=2")
            continue
        meant = re.search(r"did you mean (\w+)\?", problem)
        inside = re.search(r"\(from (\S+)\)| It is in (\S+)\.$", problem)
        place = next(filter(None, inside.groups()), dotenv) if inside else dotenv
        file = dotenv if place == SHELL else place
        yield fail("settings", problem, _remedy(name, meant[1] if meant else None, name in context.shell, file))
    if not problems:
        origins = context.loaded.origins
        given = [item.env for item in variables(context.settings.env) if not origins[item.field].startswith("default")]
        device = f"{context.settings.device} defaults, because {context.settings.device_reason}"
        yield ok("settings", f"{', '.join(given)} given, else {device}" if given else device)


def name_checks(context: Context) -> Iterator[Check]:
    """Find variables whose names are nearly those of settings, which train and serve refuse to start with.

    HANABI_ names that are no setting are refused by the settings.
    """
    slips = misspelt_names(name for name, value in context.environ.items() if value.strip())
    slips = {name: meant for name, meant in slips.items() if not name.upper().startswith("HANABI_")}
    if slips:
        yield fail(
            "names",
            "; ".join(f"{name} is set, but the setting is {meant}" for name, meant in slips.items())
            + "; nothing reads it, and train and serve stop.",
            "\n".join(
                f"{_rename(name, meant)}   # or, if it is meant for other software: unset {name}"
                for name, meant in slips.items()
            ),
        )
    else:
        yield ok("names", "no variable looks like a misspelt setting")


def unset(context: Context, field: str) -> str:
    """Return what takes a setting away from where it was given."""
    name = next(variable.env for variable in variables(context.settings.env) if variable.field == field)
    origin = context.loaded.origins[field]
    if origin == SHELL:
        return f"unset {name}"
    return f"sed -i '/^{name}=/d' {context.settings.profile if origin == PROFILE else DOTENV}"


def _remedy(name: str, meant: str | None, in_shell: bool, dotenv: str) -> str:
    if meant:
        return _rename(name, meant) if in_shell else f"sed -i 's/^{name}=/{meant}=/' {dotenv}"
    show = f".venv/bin/hanabi-grpo settings --markdown | grep {name}"
    return (f"unset {name}" if in_shell else f"sed -i '/^{name}=/d' {dotenv}") + f"\n{show}"


def _rename(name: str, meant: str) -> str:
    return f'export {meant}="${name}"; unset {name}'


def _names(problems: Sequence[str]) -> set[str]:
    return {match[1] for problem in problems if (match := _NAME.match(problem))}
