"""Show settings: a table for the terminal, JSON for run folders, Markdown for docs/settings.md."""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.settings.load import LoadedSettings
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.saved import ORIGINS, VALUES
from hanabi_grpo.settings.variables import PASSED_THROUGH, SECTIONS, Variable, typed
from hanabi_grpo.terminal import ColumnKind, FittedTable

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
        title = f"{title}; settings that differ:"
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
        # A docstring of two lines would end the row.
        " ".join(variable.description.split()),
        variable.allowed,
    ]
    return f"| {' | '.join(cells)} |"
