"""`hanabi-grpo settings`: every setting, its value and its origin."""

import sys
from typing import Annotated

import typer


def settings(
    as_json: Annotated[bool, typer.Option("--json", help="As settings.json holds them.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The README's table of all variables.")] = False,
) -> None:
    """Show every setting, which is an environment variable, its value, and where that came from."""
    from hanabi_grpo.commands.console import make_console, print_json
    from hanabi_grpo.settings import environment_markdown, load_settings, settings_json, settings_table

    if as_markdown:
        sys.stdout.write(environment_markdown())
    elif as_json:
        print_json(settings_json(load_settings()), indent=2)
    else:
        make_console().print(settings_table(load_settings()))
