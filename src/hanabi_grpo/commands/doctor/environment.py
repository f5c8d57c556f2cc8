"""Settings resolved as far as they go: each problem becomes a finding, the rest of the doctor runs on."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings, variables
from hanabi_grpo.settings.load import resolve
from hanabi_grpo.settings.misspelt import check_names
from hanabi_grpo.settings.sources import DOTENV, PROFILE, SHELL, read_sources

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?==| \(from)")


def resolve_settings(environ: Mapping[str, str], dotenv: Path = Path(DOTENV)) -> tuple[LoadedSettings, tuple[str, ...]]:
    """Resolve every setting, leaving out what is refused.

    Returns:
        The settings, and each problem as `load_settings` and `check_names` word it. A refused variable has its default.

    Raises:
        SettingsError: The settings are refused whatever is left out.
    """
    problems: list[str] = []
    for look in (load_settings, check_names):
        try:
            look(environ, dotenv)
        except SettingsError as error:
            problems += [line for line in str(error).splitlines() if line not in problems]
    sources, refused = read_sources(environ, dotenv, tolerant=True), _names(problems)
    while True:
        try:
            return resolve(sources, without=refused), tuple(problems)
        except SettingsError as error:
            more = str(error).splitlines()
            if not _names(more) - refused:
                raise
            refused |= _names(more)
            problems += more


def settings_checks(context: Context) -> Iterator[Check]:
    """Tell what was given, or every problem with it."""
    for problem in context.problems:
        name = next(iter(_names([problem])), "")
        if not name:
            yield fail("settings", problem, f"correct {problem.partition(':')[0]}; an example: HANABI_PLAYERS=2")
            continue
        inside = re.search(r"\(from (\S+)\)| It is in (\S+)\.$", problem)
        place = next(filter(None, inside.groups()), DOTENV) if inside else DOTENV
        file = DOTENV if place == SHELL else place
        in_shell = name in context.shell
        if meant := re.search(r"did you mean (\w+)\?", problem):
            shell, line = f'export {meant[1]}="${name}"; unset {name}', f"s/^{name}=/{meant[1]}=/"
        else:
            shell, line = f"unset {name}", f"/^{name}=/d"
        way = shell if in_shell else f"sed -i '{line}' {file}"
        show = "" if meant else f"\n.venv/bin/hanabi-grpo settings --markdown | grep {name}"
        yield fail("settings", problem, way + show)
    if not context.problems:
        origins = context.loaded.origins
        given = [item.env for item in variables(Settings) if not origins[item.field].startswith("default")]
        device = f"{context.settings.device} defaults, because {context.settings.device_reason}"
        yield ok("settings", f"{', '.join(given)} given, else {device}" if given else device)


def unset(context: Context, field: str) -> str:
    """Return what takes a setting away from where it was given."""
    name = next(variable.env for variable in variables(Settings) if variable.field == field)
    origin = context.loaded.origins[field]
    if origin == SHELL:
        return f"unset {name}"
    return f"sed -i '/^{name}=/d' {context.settings.profile if origin == PROFILE else DOTENV}"


def _names(problems: Sequence[str]) -> set[str]:
    return {match[1] for problem in problems if (match := _NAME.match(problem))}
