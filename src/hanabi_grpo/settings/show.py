"""Show settings: a table for the terminal, JSON for run folders, Markdown for docs/settings.md."""

import json
import re
from collections.abc import Sequence
from typing import Any

from hanabi_grpo.settings.load import LoadedSettings
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.profile_files import EVAL_LINEUPS
from hanabi_grpo.settings.saved import ORIGINS, VALUES
from hanabi_grpo.settings.sources import PROFILE_VARIABLE
from hanabi_grpo.settings.variables import PASSED_THROUGH, SECTIONS, Variable, typed
from hanabi_grpo.terminal import ColumnKind, FittedTable

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+(?<![-.+])", re.ASCII)
"""Texts that need no quotes in YAML, except `_YAML_WORDS`."""
_YAML_WORDS = ("null", "yes", "no", "on", "off", "y", "n")
"""Words that YAML reads as something else; true and false are read as meant."""
_TITLES = {
    "run": "Both terminals",
    "server": "Rollout server",
    "game": "Game",
    "trainer": "Trainer",
    "tracking": "Tracking",
}
"""Heading of each section of docs/settings.md."""


def settings_table(
    loaded: LoadedSettings,
    sections: Sequence[str] = SECTIONS,
    *,
    only_given: bool = False,
    named: str = "",
) -> FittedTable:
    """Return a table of value and origin.

    Args:
        loaded: The settings.
        sections: The sections to show, in this order.
        only_given: Whether to leave defaults out.
        named: Part of the names of the variables to show, in upper case; "": all.
    """
    settings = loaded.settings
    title = f"defaults for {settings.device}: {settings.device_reason}"
    if only_given:
        title = f"{title}; settings that differ from them:"
    kinds = (ColumnKind.NAME, ColumnKind.TEXT, ColumnKind.TEXT)
    table = FittedTable(title, ("variable", "value", "from"), kinds)
    for section in sections:
        table.add_section()
        for variable in variables(settings.env):
            if variable.section != section or named not in variable.env:
                continue
            origin = loaded.origins[variable.field]
            is_default = origin.startswith("default")
            if is_default and only_given:
                continue
            value = typed(getattr(settings, variable.field)) or "-"
            table.add_row(variable.env, value, origin, style="dim" if is_default else None)
    table.add_section()
    for name, (value, origin) in loaded.passed_through.items():
        if named in name:
            table.add_row(name, value, origin)
    return table


def settings_yaml(loaded: LoadedSettings) -> str:
    """Return a profile with the given settings; HANABI_PROFILE reads the same settings from it.

    Defaults are comments, because they depend on what is given. Keys are left to the environment.
    """
    settings = loaded.settings
    lines = [
        f"# Settings of hanabi-grpo, {settings.device}: {settings.device_reason}",
        "# HANABI_PROFILE=this-file.yaml reads it; the shell and --set override it.",
    ]
    for section in SECTIONS:
        lines += ["", f"{section}:"]
        for variable in variables(settings.env):
            is_profile = variable.env == PROFILE_VARIABLE
            if variable.section != section or is_profile:
                continue
            value = getattr(settings, variable.field)
            is_given = not loaded.origins[variable.field].startswith("default")
            if variable.secret:
                if is_given:
                    lines.append(f"  # {variable.env}: a key, set it in the environment")
            elif is_given:
                lines.append(f"  {variable.env}: {_yaml_value(value, variable.env)}")
            else:
                lines.append(f"  # {variable.env}: {_yaml_value(value, variable.env)}")
    if loaded.passed_through:
        lines.append("")
        for name, (text, _) in loaded.passed_through.items():
            lines.append(f"{name}: {_yaml_scalar(text)}")
    return "\n".join(lines) + "\n"


def _yaml_value(value: Any, name: str) -> str:
    """Return a setting's value in one line of YAML; a list as a list."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(_yaml_scalar(str(part)) for part in value)}]"
    text = typed(value)
    if name == EVAL_LINEUPS and ";" in text:
        return f"[{', '.join(_yaml_scalar(part.strip()) for part in text.split(';'))}]"
    return _yaml_scalar(text)


def _yaml_scalar(text: str) -> str:
    """Return a scalar that YAML reads as this text: plain if possible, else in quotes."""
    if not text:
        return "null"
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def settings_json(loaded: LoadedSettings) -> dict[str, Any]:
    """Return what `settings.json` holds; keys are the variables' names, secrets are masked."""
    settings = loaded.settings
    origins = {}
    for variable in variables(settings.env):
        origins[variable.env] = loaded.origins[variable.field]
    return {
        "device": settings.device,
        "device_reason": settings.device_reason,
        VALUES: settings_values(settings),
        ORIGINS: origins,
        "passed_through": {name: value for name, (value, _) in loaded.passed_through.items()},
    }


def settings_values(settings: Settings) -> dict[str, Any]:
    """Return every value by its variable's name, ready for JSON; secrets are masked."""
    values: dict[str, Any] = {}
    for variable in variables(settings.env):
        value = getattr(settings, variable.field)
        is_plain = value is None or isinstance(value, bool | int | float)
        values[variable.env] = value if is_plain else typed(value)
    return values


def environment_markdown() -> str:
    """Return the tables of docs/settings.md, all variables, one for each section."""
    lines = []
    for section in SECTIONS:
        lines += [
            f"**{_TITLES[section]}**",
            "",
            "| variable | default without a GPU | with GPUs | meaning | allowed |",
            "|---|---|---|---|---|",
        ]
        for variable in variables():
            if variable.section == section:
                lines.append(_markdown_row(variable))
        lines.append("")
    lines += ["**Passed through to other software**", "", "| variable | meaning |", "|---|---|"]
    for name, meaning in PASSED_THROUGH.items():
        lines.append(f"| `{name}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _markdown_row(variable: Variable) -> str:
    cells = [
        f"`{variable.env}`",
        f"`{variable.cpu}`" if variable.cpu else "unset",
        f"`{variable.gpu}`" if variable.gpu else "unset",
        # A line break in the description would end the row.
        " ".join(variable.description.split()),
        variable.allowed,
    ]
    return f"| {' | '.join(cells)} |"
