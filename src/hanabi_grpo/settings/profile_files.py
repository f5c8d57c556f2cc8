"""Settings files: NAME=value lines, and YAML with a base, sections and lists.

    base: gpu-8.yaml              # another file, relative to this one; this file's values win
    trainer:                      # a section of docs/settings.md; names may be outside, too
      LEARNING_RATE: 1e-5
      HANABI_PARTNERS: [iggi, outputs/first]
    HANABI_PRESET: marshal-mini

Scalars are read as typed: 1e-5 stays 1e-5, and a version number does not become a date.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import yaml
from dotenv.parser import parse_stream

from hanabi_grpo.errors import SettingsError, did_you_mean
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_text

YAML_SUFFIXES = (".yaml", ".yml")
BASE = "base"
"""Key that names the file that a YAML file is based on."""
SECTION_KEYS = ("run", "server", "game", "trainer", "tracking")
"""Keys that group settings, as the tables of docs/settings.md do."""
EVAL_LINEUPS = "HANABI_EVAL_LINEUPS"
"""The one list whose parts may hold commas."""
_NULL_TAG = "tag:yaml.org,2002:null"
_BOOL_TAG = "tag:yaml.org,2002:bool"
_TRUE = ("true", "yes", "on")
_MOST_BASES = 16
"""Maximum number of files in a chain of bases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """What a file and its bases hold. An empty value counts as unset and is not among them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name to value."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Name to the file that gives its value, if that file is a base."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Name to the section that contains it, if any."""
    is_strict: bool = False
    """Whether it may hold nothing but settings: a YAML file is for this package only."""


def read_settings_file(path: Path) -> SettingsFile:
    """Read a settings file; YAML by its suffix, else NAME=value lines.

    Raises:
        SettingsError: It cannot be read, is malformed, or its bases are missing or form a cycle.
    """
    if path.suffix in YAML_SUFFIXES:
        return _read_yaml(path, ())
    return SettingsFile(values=read_lines(path))


def read_lines(path: Path) -> dict[str, str]:
    """Read NAME=value lines.

    Raises:
        SettingsError: The file cannot be read, or a line is not an assignment.
    """
    text = _read_text(path, "NAME=value lines")
    if "\0" in text:
        number = text[: text.index("\0")].count("\n") + 1
        raise SettingsError(
            f"{path} line {number}: a NUL character, which no variable can hold. Is it UTF-16? "
            "Save it as UTF-8."
        )
    values = {}
    for line in parse_stream(StringIO(text)):
        if line.error:
            raise SettingsError(
                f"{path} line {line.original.line}: not a NAME=value line. "
                "Example: HANABI_PLAYERS=2"
            )
        if line.key:
            values[line.key] = line.value or ""
    return non_empty(values)


def non_empty(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values without surrounding spaces, and without empty values."""
    return {name: value.strip() for name, value in values.items() if value.strip()}


def _read_yaml(path: Path, derived: Sequence[Path]) -> SettingsFile:
    """Read a YAML file over its base.

    Args:
        path: The file.
        derived: The files that are based on it, in the order in which they were read.
    """
    chain = [*derived, path]
    resolved = [os.path.realpath(each) for each in chain]
    if resolved[-1] in resolved[:-1]:
        shown = " → ".join(map(str, chain))
        raise SettingsError(
            f"{derived[-1]}: {BASE}: {path}: a cycle of bases ({shown}); remove the line from one "
            "of these files."
        )
    if len(chain) > _MOST_BASES:
        raise SettingsError(
            f"{path}: more than {_MOST_BASES} files in a chain of bases; merge some of them."
        )
    text = _read_text(path, "YAML")
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(
            f"{path}: not YAML ({reason}). Example line: HANABI_PLAYERS: 2"
        ) from error
    if root is None:
        return SettingsFile(is_strict=True)
    reader = _YamlReader(path)
    reader.read(root)
    if reader.base is None:
        return reader.file(SettingsFile())
    base = path.parent / Path(reader.base).expanduser()
    if not base.is_file():
        there = sorted(each.name for each in path.parent.glob("*") if _is_settings_file(each))
        raise SettingsError(
            f"{path}: {BASE}: {reader.base}: no such file next to {path.name}; files there are "
            f"{', '.join(there)}. Correct the line, or remove it."
        )
    if base.suffix in YAML_SUFFIXES:
        return reader.file(_read_yaml(base, chain), base)
    return reader.file(SettingsFile(values=read_lines(base)), base)


def _is_settings_file(path: Path) -> bool:
    return path.suffix in (*YAML_SUFFIXES, ".env") and path.is_file()


def _read_text(path: Path, content: str) -> str:
    try:
        return read_text(path, MAX_DOCUMENT_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: cannot be read ({error}); it must contain {content} in UTF-8."
        ) from error


class _YamlReader:
    """Reads the nodes of one file; errors name file and line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.base: str | None = None
        self._values: dict[str, str] = {}
        """Including empty values, which remove a value of the base."""
        self._sections: dict[str, str] = {}

    def file(self, base: SettingsFile, path: Path | None = None) -> SettingsFile:
        """Return this file's values over those of its base.

        Args:
            base: The content of the base.
            path: Path of the base; None: there is no base.
        """
        labels = dict(base.labels)
        if path is not None:
            for name in base.values:
                labels.setdefault(name, str(path))
        for name in self._values:
            labels.pop(name, None)
        return SettingsFile(
            values=non_empty({**base.values, **self._values}),
            labels=labels,
            sections={**base.sections, **self._sections},
            is_strict=True,
        )

    def read(self, root: yaml.Node) -> None:
        """Read the whole document."""
        if not isinstance(root, yaml.MappingNode):
            raise self._problem(root, "the file must map names to values, as in HANABI_PLAYERS: 2")
        for key, value in self._pairs(root):
            if key == BASE:
                self.base = self._scalar(value, BASE)
                if not self.base:
                    raise self._problem(value, f"{BASE}: must name a file; add one, or remove it")
            elif key in SECTION_KEYS:
                self._read_section(key, value)
            else:
                self._read_setting(key, value)

    def _read_section(self, section: str, node: yaml.Node) -> None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _NULL_TAG:
            return
        if not isinstance(node, yaml.MappingNode):
            raise self._problem(node, f"the section {section} must map names to values")
        for name, value in self._pairs(node):
            self._read_setting(name, value)
            self._sections[name] = section

    def _read_setting(self, name: str, node: yaml.Node) -> None:
        if name in self._values:
            raise self._problem(node, f"{name} is in this file twice; remove one")
        if name.islower() and isinstance(node, yaml.MappingNode):
            raise self._problem(
                node,
                f"{name}: no such section; {did_you_mean(name, SECTION_KEYS)}allowed are "
                f"{', '.join(SECTION_KEYS)} and {BASE}",
            )
        self._values[name] = self._value(node, name)

    def _value(self, node: yaml.Node, name: str) -> str:
        """Return a setting's value as a user would type it."""
        if isinstance(node, yaml.SequenceNode):
            parts = [self._scalar(part, name) for part in node.value]
            separator = ";" if name == EVAL_LINEUPS else ","
            for part in parts:
                if separator in part:
                    raise self._problem(node, f"{name}: an item of the list contains {separator!r}")
            return separator.join(parts)
        if isinstance(node, yaml.MappingNode):
            # As LEARNING_RATE=player_0=1e-5,player_1=3e-5 is typed.
            pairs = self._pairs(node)
            return ",".join(f"{key}={self._scalar(value, name)}" for key, value in pairs)
        return self._scalar(node, name)

    def _scalar(self, node: yaml.Node, name: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._problem(node, f"{name}: nested lists and mappings are not allowed")
        if node.tag == _NULL_TAG:
            return ""
        if node.tag == _BOOL_TAG:
            return "true" if node.value.lower() in _TRUE else "false"
        return str(node.value)

    def _pairs(self, node: yaml.MappingNode) -> list[tuple[str, yaml.Node]]:
        pairs: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._problem(key, "a key must be a name")
            if key.value in pairs:
                raise self._problem(key, f"{key.value} is in this file twice; remove one")
            pairs[key.value] = value
        return list(pairs.items())

    def _problem(self, node: yaml.Node, reason: str) -> SettingsError:
        return SettingsError(f"{self._path} line {node.start_mark.line + 1}: {reason}.")
