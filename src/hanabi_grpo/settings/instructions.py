"""HANABI_INSTRUCTION: the only place that reads the files that it names.

Settings, run folders and requests hold the text. So a request never names a file, and a resumed run
keeps the text that it began with.
"""

from pathlib import Path

from hanabi_grpo.envs.instructions import (
    MAX_CHARACTERS,
    NamedFile,
    file_names,
    split_instruction,
)
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.files import read_text
from hanabi_grpo.types import player_name

_MAX_BYTES = 4 * MAX_CHARACTERS
"""Maximum number of bytes for that many characters."""


def read_instruction(value: object) -> object:
    """Return the text of HANABI_INSTRUCTION, with the content of the files that it names.

    Args:
        value: The value as it was given; anything but a string is returned unchanged.

    Raises:
        SettingsError: A file cannot be read or holds no instruction, or a seat has two files.
    """
    if not isinstance(value, str):
        return value
    files = file_names(value)
    parts: dict[int | None, str] = {}
    for file in files:
        if file.player in parts:
            seat = "every seat" if file.player is None else player_name(file.player)
            raise SettingsError(
                f"instruction={shown(value)}: {seat} has two files; combine them into one."
            )
        parts[file.player] = _read(file)
    if not files:
        try:
            split_instruction(value)
        except ValueError as error:
            raise SettingsError(f"instruction={shown(value)}: {error}.") from error
        return value
    # The text of every seat comes first; a seat's own begins with its name.
    lines = []
    for player in sorted(parts, key=lambda number: -1 if number is None else number):
        prefix = "" if player is None else f"{player_name(player)}="
        lines.append(prefix + parts[player])
    text = "\n".join(lines)
    try:
        split_instruction(text)
    except ValueError as error:
        raise SettingsError(f"instruction={shown(value)}: {error}.") from error
    return text


def _read(file: NamedFile) -> str:
    """Return the text of a file."""
    try:
        text = read_text(Path(file.path), _MAX_BYTES).strip()
    except OSError as error:
        raise SettingsError(
            f"instruction={file.path}: cannot be read ({error.strerror or error}); a value that "
            "ends in .txt or .md and has no space is the path of a file, relative to the folder "
            "where the command runs."
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"instruction={file.path}: is not UTF-8; save it as UTF-8.") from error
    if not text:
        raise SettingsError(f"instruction={file.path}: is empty; write the instruction into it.")
    if file_names(text):
        raise SettingsError(
            f"instruction={file.path}: contains only the name of a file, {shown(text)}; name that "
            "file instead."
        )
    if file.player is not None and any(player is not None for player in split_instruction(text)):
        raise SettingsError(
            f"instruction={file.path}: is for {player_name(file.player)} but has lines that begin "
            "with player_N=; give it without a seat, or remove these lines."
        )
    return text
