"""`hanabi-grpo settings`: every setting, its value and its origin."""

import sys
from typing import Annotated

import typer

from hanabi_grpo.commands.console import show_settings
from hanabi_grpo.settings import environment_markdown


def settings(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print them as settings.json holds them.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables of docs/settings.md.")
    ] = False,
) -> None:
    """Show every setting, its value, and where the value comes from.

    Every setting is an environment variable.
    """
    if as_markdown:
        sys.stdout.write(environment_markdown())
    else:
        show_settings(as_json=as_json)
