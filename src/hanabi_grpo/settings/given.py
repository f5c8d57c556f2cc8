"""Names of the variables that `.env`, the profile and --set set, for tools/launch.sh.

    python -m hanabi_grpo.settings.given [arguments of the script]
    python -m hanabi_grpo.settings.given --value NAME [arguments of the script]

They take precedence over a script's own defaults. The script sees the shell's variables itself. The
second form prints the value of one variable, wherever it is set.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hanabi_grpo.settings.sources import (
    DOTENV,
    Sources,
    find,
    read_sources,
    set_on_command_line,
    split_assignments,
)


def given_names(
    arguments: Sequence[str], environ: Mapping[str, str], dotenv: Path = Path(DOTENV)
) -> list[str]:
    """Return the names, sorted.

    Args:
        arguments: Of the script, with --set NAME=VALUE or --set=NAME=VALUE among them.
        environ: The shell's variables, for the profile that they may name.
        dotenv: Path of `.env`.

    Raises:
        SettingsError: A file cannot be read, or an argument is not an assignment.
    """
    sources = _sources(arguments, environ, dotenv)
    names = {*sources.command_line.values, *sources.dotenv.values, *sources.profile.values}
    return sorted(names)


def given_value(
    name: str, arguments: Sequence[str], environ: Mapping[str, str], dotenv: Path = Path(DOTENV)
) -> str:
    """Return the value of a variable from its first source; "" where none has it.

    Args:
        name: The variable.
        arguments: Of the script, see `given_names`.
        environ: The shell's variables.
        dotenv: Path of `.env`.

    Raises:
        SettingsError: A file cannot be read, or an argument is not an assignment.
    """
    given = find(_sources(arguments, environ, dotenv).ordered, name)
    return "" if given is None else given.value


def _sources(arguments: Sequence[str], environ: Mapping[str, str], dotenv: Path) -> Sources:
    """Read all sources of a script; see `given_names`."""
    assignments, _ = split_assignments(arguments)
    with_set = dict(environ)
    set_on_command_line(assignments, with_set)
    return read_sources(with_set, dotenv)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--value"]:
        print(given_value(sys.argv[2], sys.argv[3:], os.environ))
    else:
        print("\n".join(given_names(sys.argv[1:], os.environ)))
