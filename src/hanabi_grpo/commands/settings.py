"""`hanabi-grpo settings`: every setting, its value and its origin."""

import sys
from typing import Annotated

import typer

from hanabi_grpo.commands.console import show_settings
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import environment_markdown


def settings(
    name: Annotated[
        str,
        typer.Argument(
            help="Show only names that contain this, e.g. advantage.", show_default="all settings"
        ),
    ] = "",
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings that differ from their defaults.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in the format of settings.json.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables of docs/settings.md.")
    ] = False,
) -> None:
    """Show every setting, its value, and where the value comes from.

    Every setting is an environment variable.
    """
    if (as_json or as_markdown) and (name or changed):
        raise SettingsError(
            f"NAME={name!r}, --changed: these filter the table; --json and --markdown always print "
            "every setting. Omit them."
        )
    if as_json and as_markdown:
        raise SettingsError("--json and --markdown: two formats; choose one of them.")
    if as_markdown:
        sys.stdout.write(environment_markdown())
    else:
        show_settings(as_json=as_json, only_given=changed, named=name)
