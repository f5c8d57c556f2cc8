"""Where values come from: the shell over `.env` over the profile. Files hold NAME=value lines."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_text

SHELL = "shell"
DOTENV = ".env"
PROFILE = "profile"
"""Origins as tables show them; the shell wins over `.env`, `.env` over the profile."""
PROFILE_VARIABLE = "HANABI_PROFILE"
"""Names the profile; it may stand in the shell and in `.env`."""
PROFILES = Path("tools/profiles")
"""Folder of the profiles that come with the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The variables of one origin. An empty value counts as unset and is not among them."""

    origin: str
    """SHELL, DOTENV or PROFILE."""
    label: str
    """For messages: "shell", or the file's path."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name to value, without spaces around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenValue:
    """A variable's value and the source that gave it."""

    value: str
    source: Source


def read_sources(
    environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)
) -> tuple[Source, Source, Source]:
    """Read the shell's variables, `.env`, and the profile that either of them names.

    Args:
        environ: The shell's variables; None: this process's.
        dotenv: Path of `.env`; the file may be missing.

    Returns:
        The shell, `.env` and the profile, in this order: an earlier one wins.

    Raises:
        SettingsError: A file cannot be read, a line is no assignment, or the profile is missing or
            names a profile itself.
    """
    variables = os.environ if environ is None else environ
    shell = Source(origin=SHELL, label=SHELL, values=_non_empty(variables))
    file_values = _read_file(dotenv) if dotenv.is_file() else {}
    file = Source(origin=DOTENV, label=str(dotenv), values=file_values)
    for source in (shell, file):
        profile = source.values.get(PROFILE_VARIABLE)
        if profile:
            return shell, file, _read_profile(profile, source.label)
    return shell, file, Source(origin=PROFILE, label="no profile")


def find(sources: Sequence[Source], name: str) -> GivenValue | None:
    """Return a variable's value from the first source that has it; None where none has it."""
    for source in sources:
        if name in source.values:
            return GivenValue(value=source.values[name], source=source)
    return None


def _read_profile(profile: str, named_in: str) -> Source:
    """Read a profile.

    Args:
        profile: Its path, as it was typed.
        named_in: Where it was typed, for messages.
    """
    path = Path(profile)
    given = f"{PROFILE_VARIABLE}={profile!r} (from {named_in})"
    if not os.path.isfile(path):
        shipped = sorted(str(file) for file in PROFILES.glob("*.env"))
        there = ", ".join(shipped) or f"none in {PROFILES} below this folder"
        raise SettingsError(
            f"{given}: no such file; there are {there}; any file of NAME=value lines will do."
        )
    values = _read_file(path)
    if values.pop(PROFILE_VARIABLE, None):
        raise SettingsError(
            f"{given}: names a profile itself; one profile holds, so take that line out of {path}."
        )
    return Source(origin=PROFILE, label=profile, values=values)


def _read_file(path: Path) -> dict[str, str]:
    try:
        text = read_text(path, MAX_DOCUMENT_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); it holds NAME=value lines in UTF-8."
        ) from error
    values = {}
    for line in parse_stream(StringIO(text)):
        if line.error:
            raise SettingsError(
                f"{path} line {line.original.line}: not a NAME=value line. "
                "Example: HANABI_PLAYERS=2"
            )
        if line.key:
            values[line.key] = line.value or ""
    return _non_empty(values)


def _non_empty(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in values.items() if value.strip()}
