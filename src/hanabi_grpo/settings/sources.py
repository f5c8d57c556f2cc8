"""Where values come from: the shell over `.env` over the profile. Files hold NAME=value lines."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from hanabi_grpo.errors import SettingsError

SHELL, DOTENV, PROFILE = "shell", ".env", "profile"
"""Origins as tables show them; an earlier one wins."""
PROFILE_VARIABLE = "HANABI_PROFILE"
PROFILES = Path("tools/profiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The variables of one place. An empty value counts as unset and is not among them."""

    origin: str
    """SHELL, DOTENV or PROFILE."""
    place: str
    """For messages: "shell", or the file's path."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_sources(
    environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)
) -> tuple[Source, Source, Source]:
    """Read the shell's variables (`environ`; None: this process's), `.env`, and the profile that
    either of them names.

    Raises: SettingsError: A file that cannot be read, a line that is no assignment, a profile that
        is not there or that names a profile itself; `.env` may be missing.
    """
    shell = Source(
        origin=SHELL, place=SHELL, values=_given(os.environ if environ is None else environ)
    )
    file = Source(
        origin=DOTENV, place=str(dotenv), values=_read(dotenv) if dotenv.is_file() else {}
    )
    for source in (shell, file):
        if named := source.values.get(PROFILE_VARIABLE):
            return shell, file, _read_profile(named, source.place)
    return shell, file, Source(origin=PROFILE, place="no profile")


def find(sources: Sequence[Source], name: str) -> tuple[str, Source] | None:
    """Return a variable's value and the first source that has it; None where nobody gives it."""
    return next(
        ((source.values[name], source) for source in sources if name in source.values), None
    )


def _read_profile(named: str, place: str) -> Source:
    path = Path(named)
    said = f"{PROFILE_VARIABLE}={named!r} (from {place})"
    if not os.path.isfile(path):
        there = (
            ", ".join(sorted(map(str, PROFILES.glob("*.env"))))
            or f"none in {PROFILES} below this folder"
        )
        raise SettingsError(
            f"{said}: no such file; there are {there}; any file of NAME=value lines will do."
        )
    values = _read(path)
    if values.pop(PROFILE_VARIABLE, None):
        raise SettingsError(
            f"{said}: names a profile itself; one profile holds, so take that line out of {path}."
        )
    return Source(origin=PROFILE, place=named, values=values)


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); it holds NAME=value lines in UTF-8."
        ) from error
    found = {}
    for line in parse_stream(StringIO(text)):
        if line.error:
            raise SettingsError(
                f"{path} line {line.original.line}: not a NAME=value line. Example: "
                "HANABI_PLAYERS=2"
            )
        if line.key:
            found[line.key] = line.value or ""
    return _given(found)


def _given(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in values.items() if value.strip()}
