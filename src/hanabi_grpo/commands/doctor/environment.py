"""The settings: every problem with them, before anything else is looked at."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hanabi_grpo.commands.doctor.check import Check, fail, ok
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings, variables
from hanabi_grpo.settings.load import check_names
from hanabi_grpo.settings.sources import DOTENV, PROFILE, SHELL

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?==| \(from)")


def settings_or_problems(dotenv: Path = Path(DOTENV)) -> tuple[LoadedSettings | None, list[Check]]:
    """Return the settings, or what is wrong with them: without settings nothing else can be looked at."""
    problems: list[str] = []
    loaded = None
    try:
        loaded = load_settings(os.environ, dotenv)
    except SettingsError as error:
        problems = str(error).splitlines()
    try:
        check_names(os.environ, dotenv)
    except SettingsError as error:
        problems += [line for line in str(error).splitlines() if line not in problems]
    return loaded, [_problem(line) for line in problems]


def settings_checks(context: Context) -> Iterator[Check]:
    """Tell what was given."""
    origins, settings = context.loaded.origins, context.settings
    given = [item.env for item in variables(settings.env) if not origins[item.field].startswith("default")]
    device = f"{settings.device} defaults, because {settings.device_reason}"
    yield ok("settings", f"{', '.join(given)} given, else {device}" if given else device)


def unset(context: Context, field: str) -> str:
    """Return what takes a setting away from where it was given."""
    name = next(variable.env for variable in variables(context.settings.env) if variable.field == field)
    origin = context.loaded.origins[field]
    if origin == SHELL:
        return f"unset {name}"
    return f"sed -i '/^{name}=/d' {context.settings.profile if origin == PROFILE else DOTENV}"


def _problem(text: str) -> Check:
    found = _NAME.match(text)
    if not found:
        return fail("settings", text, f"correct {text.partition(':')[0]}; an example: HANABI_PLAYERS=2")
    name = found[1]
    inside = re.search(r"\(from (\S+)\)| It is in (\S+)\.$", text)
    place = next(filter(None, inside.groups()), DOTENV) if inside else DOTENV
    if meant := re.search(r"did you mean (\w+)\?", text):
        shell, line = f'export {meant[1]}="${name}"; unset {name}', f"s/^{name}=/{meant[1]}=/"
    else:
        shell, line = f"unset {name}", f"/^{name}=/d"
    way = shell if name in os.environ else f"sed -i '{line}' {DOTENV if place == SHELL else place}"
    show = "" if meant else f"\n.venv/bin/hanabi-grpo settings --markdown | grep {name}"
    return fail("settings", text, way + show)
