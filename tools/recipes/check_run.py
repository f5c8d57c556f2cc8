"""Tell whether a finished run has the settings that a recipe would train it with now.

    python tools/recipes/check_run.py [--only] RUN NAME=VALUE ...

Each NAME=VALUE is a setting of this run; a * in the value stands for any text. Without --only, all
other settings are compared, too, that the shell, `.env`, the profile or --set gives a value, unless
they only affect the machine, records and places. Exits with 1 after a line with the settings that
differ.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings import load_settings, settings_json, variables
from hanabi_grpo.settings.affects import Affects
from hanabi_grpo.settings.saved import SETTINGS_FILE, VALUES, read_settings_document
from hanabi_grpo.settings.sources import read_sources
from hanabi_grpo.settings.variables import typed

IGNORED = (Affects.MACHINE, Affects.RECORD, Affects.PLACE)
"""What a setting affects that may differ."""


def read_values(run: Path) -> Mapping[str, Any]:
    """Return the settings of a run by variable.

    Args:
        run: The run folder.

    Raises:
        SettingsError: Its settings cannot be read.
    """
    path = run / SETTINGS_FILE
    try:
        values = read_settings_document(path).get(VALUES)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from error
    if not isinstance(values, Mapping):
        raise SettingsError(f"{path}: holds no settings")
    return values


def differences(
    found: Mapping[str, Any], asked: Mapping[str, str], *, only: bool = False
) -> list[str]:
    """Return the settings that differ, e.g. "MAX_STEPS=60 (asked: 5)".

    Args:
        found: Settings of the run by variable; those that it does not name are not compared.
        asked: Settings of this run, which take precedence over those of the environment.
        only: Whether the others of the environment may differ.

    Raises:
        SettingsError: A value that is asked for is malformed.
    """
    environ = {**os.environ, **asked}
    compared = set(asked)
    if not only:
        for source in read_sources(environ).ordered:
            compared.update(source.values)
    loaded = load_settings(environ)
    values = settings_json(loaded)[VALUES]
    lines = []
    for variable in variables(loaded.settings.env):
        name = variable.env
        if name not in compared or name not in found or variable.affects in IGNORED:
            continue
        text = typed(found[name])
        wanted = typed(values[name])
        # In settings of earlier versions, false may stand for 0.
        is_equal = found[name] == values[name] or text == wanted
        if not is_equal and not fnmatchcase(text, wanted):
            lines.append(f"{name}={text} (asked: {wanted})")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print what differs and return the exit code."""
    only = arguments[0] == "--only"
    run, *assignments = arguments[1:] if only else arguments
    asked = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        asked[name] = value
    try:
        found = differences(read_values(Path(run)), asked, only=only)
    except HanabiGrpoError as error:
        print(error)
        return 1
    if found:
        print(f"{run} was trained with {', '.join(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
