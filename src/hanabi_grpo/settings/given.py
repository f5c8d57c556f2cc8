"""Names of the variables that `.env`, the profile and --set set, for tools/launch.sh.

    python -m hanabi_grpo.settings.given [arguments of the script]

They take precedence over a script's own defaults. The script sees the shell's variables itself.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hanabi_grpo.settings.sources import (
    DOTENV,
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
    assignments, _ = split_assignments(arguments)
    with_set = dict(environ)
    set_on_command_line(assignments, with_set)
    sources = read_sources(with_set, dotenv)
    names = {*sources.command_line.values, *sources.dotenv.values, *sources.profile.values}
    return sorted(names)


if __name__ == "__main__":
    print("\n".join(given_names(sys.argv[1:], os.environ)))
