"""Show settings: a table for the terminal, JSON for the run folder, Markdown for
docs/settings.md.
"""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from hanabi_grpo.settings.load import LoadedSettings
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.variables import PASSED_THROUGH, SECTIONS, typed

_TITLES = dict(
    zip(SECTIONS, ("Both terminals", "Rollout server", "Game", "Trainer", "Tracking"), strict=True)
)


def settings_table(
    loaded: LoadedSettings, sections: Sequence[str] = SECTIONS, *, only_given: bool = False
) -> Table:
    """Return a table of value and origin, for the given sections in their order; `only_given`
    leaves defaults out.
    """
    settings = loaded.settings
    title = f"defaults for {settings.device}: {settings.device_reason}"
    table = Table(
        title=f"{title}; settings that differ:" if only_given else title, title_justify="left"
    )
    for column in ("variable", "value", "from"):
        table.add_column(column, overflow="fold")
    for section in sections:
        table.add_section()
        for variable in variables(settings.env):
            origin = loaded.origins[variable.field]
            if variable.section == section and not (only_given and origin.startswith("default")):
                value = typed(getattr(settings, variable.field))
                table.add_row(
                    variable.env,
                    value or "-",
                    origin,
                    style=None if "default" not in origin else "dim",
                )
    table.add_section()
    for name, (value, origin) in loaded.passed_through.items():
        table.add_row(name, value, origin)
    return table


def settings_json(loaded: LoadedSettings) -> dict[str, Any]:
    """Return what `settings.json` holds; keys are the variables' names, secrets are masked."""
    settings = loaded.settings
    return {
        "device": settings.device,
        "device_reason": settings.device_reason,
        "settings": settings_values(settings),
        "origins": {
            variable.env: loaded.origins[variable.field] for variable in variables(settings.env)
        },
        "passed_through": {name: value for name, (value, _) in loaded.passed_through.items()},
    }


def settings_values(settings: Settings) -> dict[str, Any]:
    """Return every value by its variable's name, ready for JSON; secrets are masked."""
    found = {
        variable.env: getattr(settings, variable.field) for variable in variables(settings.env)
    }
    plain = (bool, int, float, type(None))
    return {
        env: value if isinstance(value, plain) else typed(value) for env, value in found.items()
    }


def environment_markdown() -> str:
    """Return the tables of docs/settings.md, all variables, one for each section."""
    parts = []
    for section in SECTIONS:
        parts += [
            f"**{_TITLES[section]}**",
            "",
            "| variable | default without a GPU | with GPUs | meaning | allowed |",
        ]
        parts += ["|---|---|---|---|---|"]
        for variable in variables():
            if variable.section == section:
                shown = (
                    f"`{one}`" if one else "unset"
                    for one in (variable.env, variable.cpu, variable.gpu)
                )
                parts.append(
                    "| " + " | ".join((*shown, variable.description, variable.allowed)) + " |"
                )
        parts.append("")
    parts += ["**Handed on to other software**", "", "| variable | meaning |", "|---|---|"]
    parts += [f"| `{name}` | {meaning} |" for name, meaning in PASSED_THROUGH.items()]
    return "\n".join(parts) + "\n"
