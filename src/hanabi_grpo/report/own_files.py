"""Files that reports write, each with a mark, so that no command replaces anybody else's file."""

import os
from enum import StrEnum
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import open_plain
from hanabi_grpo.runs.run_folder import save_text

_MARKED_BYTES = 2000
"""Length of the beginning of a file, which has the mark."""


class Mark(StrEnum):
    """What tells that a file was written by a report."""

    PAGE = '<meta name="generator" content="hanabi-grpo">'
    """In templates/base.html.j2."""
    TABLES = "<!-- Tables by hanabi-grpo -->"
    """First line of a file of tables; it is not shown."""
    PICTURE = "Matplotlib"
    """In the metadata of every picture that is drawn with matplotlib, by this package or not."""


def check_replaceable(path: Path | None, mark: Mark, option: str) -> None:
    """Refuse to replace a file that no report wrote.

    Args:
        path: The file that will be written; None: no file. An empty file is no obstacle, and a
            folder is refused when it is written.
        mark: What a file of this kind holds.
        option: Option that names the file, for the error message.

    Raises:
        SettingsError: The file exists without the mark, or cannot be read.
    """
    if path is None or not os.path.exists(path) or os.path.isdir(path):
        return
    try:
        with open_plain(path) as file:
            beginning = file.read(_MARKED_BYTES)
    except OSError as error:
        raise SettingsError(
            f"{option} {path}: exists, but cannot be read ({error.strerror}); name another file."
        ) from error
    if beginning and mark.encode() not in beginning:
        raise SettingsError(
            f"{option} {path}: exists, and nothing in it says that a report wrote it; name another "
            "file, or delete this one if you do not need it."
        )


def save_tables(path: Path, text: str, option: str) -> str:
    """Write tables as Markdown and return a line that reports it.

    Args:
        path: The file.
        text: The tables.
        option: Option that names the file, for the error message.

    Raises:
        SettingsError: The file cannot be written, or is not one of tables.
    """
    check_replaceable(path, Mark.TABLES, option)
    save_text(path, f"{Mark.TABLES}\n\n{text}", option)
    return f"tables: {path}"
