"""Settings of a run from its `settings.json`, including files of earlier versions.

All code reads a run's settings through this module, so renamed variables have their current name
everywhere.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.settings.model import renamed_variables

SETTINGS_FILE = "settings.json"
"""Name of the file in a run folder."""
VALUES = "settings"
"""Key of the file: every setting's value, by the variable's name."""
ORIGINS = "origins"
"""Key of the file: where each value came from, by the variable's name."""
RESUME_COMMAND = "resume_command"
"""Key of the file: the command that continues the run."""


def read_settings_document(path: Path) -> dict[str, Any]:
    """Return the content of a `settings.json`, with the current names of variables.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no JSON object.
    """
    try:
        document = json.loads(read_bytes(path, MAX_DOCUMENT_BYTES))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")
    for key in (VALUES, ORIGINS):
        content = document.get(key)
        if isinstance(content, Mapping):
            document[key] = with_current_names(content)
    command = document.get(RESUME_COMMAND)
    if isinstance(command, str):
        document[RESUME_COMMAND] = _command_with_current_names(command)
    return document


def with_current_names(by_variable: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping by variable with current names as keys, in the same order.

    Example:
        with_current_names({"HANABI_DEALS_PER_STEP": 8}) == {"HANABI_TASKS_PER_STEP": 8}
    """
    renamed = renamed_variables()
    return {renamed.get(name, name): value for name, value in by_variable.items()}


def _command_with_current_names(command: str) -> str:
    """Return a command line whose NAME=value words have current names."""
    for old, new in renamed_variables().items():
        command = re.sub(rf"\b{old}=", f"{new}=", command)
    return command
