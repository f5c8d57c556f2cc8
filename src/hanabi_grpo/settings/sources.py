"""Where values come from: --set over the shell over `.env` over the profile."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.profile_files import (
    YAML_SUFFIXES,
    non_empty,
    read_lines,
    read_settings_file,
)

COMMAND_LINE = "--set"
SHELL = "shell"
DOTENV = ".env"
PROFILE = "profile"
"""Origins as tables show them, the winning one first."""
TYPED = (COMMAND_LINE, SHELL)
"""Origins that only this process has, and that other terminals cannot read."""
COMMAND_LINE_NAMES = "SETTINGS_OF_COMMAND_LINE"
"""Variable that lists the variables that --set gave a process; its child processes inherit both."""
PROFILE_VARIABLE = "HANABI_PROFILE"
"""Names the profile; it may be set in the shell and in `.env`."""
PROFILES = Path("tools/profiles")
"""Folder of the profiles that come with the repository."""
_HOME = re.compile(r"(?P<before>^|[,;=]\s*)(?P<home>~[^/,;=\s]*)(?=/|$)")
"""A ~ or ~user that begins a path: in a value, in an entry of a list, or after a player's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The variables of one origin. An empty value counts as unset and is not among them."""

    origin: str
    """COMMAND_LINE, SHELL, DOTENV or PROFILE."""
    label: str
    """For messages: "shell", or the file's path."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name to value, without spaces around it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Name to the file of its value if that is a different file: the base of a profile."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Name to the section of the profile that contains it."""
    is_strict: bool = False
    """Whether every name must be a setting or a variable that is passed through."""

    def label_of(self, name: str) -> str:
        """Return where a variable's value is set, for messages."""
        return self.labels.get(name, self.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenValue:
    """A variable's value and the source that gave it."""

    value: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All sources of one process."""

    command_line: Source
    shell: Source
    dotenv: Source
    profile: Source

    @property
    def ordered(self) -> tuple[Source, ...]:
        """The sources, the winning one first."""
        return self.command_line, self.shell, self.dotenv, self.profile


def read_sources(environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)) -> Sources:
    """Read the variables of --set, of the shell, `.env`, and the profile that one of them names.

    Args:
        environ: The shell's variables, with those of --set; None: this process's.
        dotenv: Path of `.env`; the file may be missing.

    Raises:
        SettingsError: A file cannot be read or is malformed, or the profile is missing or names a
            profile itself.
    """
    variables = dict(os.environ if environ is None else environ)
    names = variables.pop(COMMAND_LINE_NAMES, "").split(",")
    set_values = {name: variables.pop(name) for name in names if name in variables}
    command_line = Source(
        origin=COMMAND_LINE, label=COMMAND_LINE, values=non_empty(set_values), is_strict=True
    )
    shell = Source(origin=SHELL, label=SHELL, values=non_empty(variables))
    file_values = read_lines(dotenv) if dotenv.is_file() else {}
    file = Source(origin=DOTENV, label=str(dotenv), values=file_values)
    profile = Source(origin=PROFILE, label="no profile")
    for source in (command_line, shell, file):
        path = source.values.get(PROFILE_VARIABLE)
        if path:
            profile = _read_profile(path, source.label)
            break
    return Sources(command_line=command_line, shell=shell, dotenv=file, profile=profile)


def split_assignments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values of every --set among a command's arguments, and the other arguments.

    Example:
        split_assignments(["train", "--set", "SEED=1"]) == (["SEED=1"], ["train"])
    """
    assignments = []
    rest = []
    words = iter(arguments)
    for word in words:
        if word == COMMAND_LINE:
            assignments.append(next(words, ""))
        elif word.startswith(f"{COMMAND_LINE}="):
            assignments.append(word.removeprefix(f"{COMMAND_LINE}="))
        else:
            rest.append(word)
    return assignments, rest


def set_on_command_line(assignments: Sequence[str], environ: dict[str, str]) -> None:
    """Put the values of --set into an environment, replacing existing ones.

    Args:
        assignments: NAME=VALUE, as typed; the last one wins if a name is given twice.
        environ: The environment, which is changed.

    Raises:
        SettingsError: An assignment is malformed, or its value contains a NUL character.
    """
    names = [name for name in environ.get(COMMAND_LINE_NAMES, "").split(",") if name]
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.isidentifier() or "\0" in value:
            raise SettingsError(
                f"--set {assignment!r}: give NAME=VALUE, e.g. --set MAX_STEPS=20; hanabi-grpo "
                "settings lists the names."
            )
        environ[name] = value
        if name not in names:
            names.append(name)
    if names:
        environ[COMMAND_LINE_NAMES] = ",".join(names)


def find(sources: Sequence[Source], name: str) -> GivenValue | None:
    """Return a variable's value from the first source that has it; None where none has it."""
    for source in sources:
        if name in source.values:
            return GivenValue(value=source.values[name], source=source)
    return None


def expand_home(value: str) -> str:
    """Return a value in which each path that begins with ~ begins with the home folder.

    A shell replaces only a ~ that it reads without quotes, so it never sees those of `.env`, of a
    profile, or of a list's later entries.

    Example:
        expand_home("~/a,player_1=~/b*3") == "/home/ann/a,player_1=/home/ann/b*3"
    """

    def expanded(match: re.Match[str]) -> str:
        return match["before"] + os.path.expanduser(match["home"])

    return _HOME.sub(expanded, value)


def _read_profile(profile: str, named_in: str) -> Source:
    """Read a profile.

    Args:
        profile: Its path, as it was typed.
        named_in: Where it was typed, for messages.
    """
    path = Path(expand_home(profile))
    given = f"{PROFILE_VARIABLE}={profile!r} (from {named_in})"
    if not os.path.isfile(path):
        shipped = sorted(str(file) for file in PROFILES.glob("*.*"))
        there = ", ".join(shipped) or f"none in {PROFILES} below this folder"
        raise SettingsError(
            f"{given}: no such file; there are {there}; any file of NAME=value lines works, or "
            f"a YAML file that ends in {' or '.join(YAML_SUFFIXES)}."
        )
    content = read_settings_file(path)
    if PROFILE_VARIABLE in content.values:
        label = content.labels.get(PROFILE_VARIABLE, path)
        raise SettingsError(
            f"{given}: names a profile itself; only one is read, so remove that line from {label}."
        )
    return Source(
        origin=PROFILE,
        label=profile,
        values=content.values,
        labels=content.labels,
        sections=content.sections,
        is_strict=content.is_strict,
    )
