"""What a run is started with besides its settings: its games, and options for ms-swift.

`settings.json` has both, because equal settings do not mean an equal run: a setting may name a file
whose content is another one now, and options for ms-swift are no settings.

Example:
    "games": [{"name": "vote", "spec_hash": "5f0c2a7b9d13", "outside": {"problems":
    {"value": "apples.jsonl", "digest": "sha256:…"}}}], "options": ["--optim", "adamw_torch"]
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.settings.pass_through import option_values
from hanabi_grpo.settings.saved import SETTINGS_FILE

GAMES = "games"
"""Key of `settings.json`: the games that the run trains on, see `RecordedGame`."""
OPTIONS = "options"
"""Key of `settings.json`: the options for ms-swift, as typed."""
_SHA256 = "sha256:"
"""Begins the digest of a file."""
_SHOWN_DIGITS = 12
"""Digits of a sha256 in a message."""
_NO_HASH = "none"
"""Stands in a message for the hash of a game that is not played."""


class RecordedThing(BaseModel):
    """Something outside the process that a game refers to, e.g. a file of problems."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    value: str
    """Value of the game's field, e.g. a path."""
    digest: str
    """Digest of its content."""


class RecordedGame(BaseModel):
    """A game that a run trains on."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    """Name that is unique in the run, e.g. "vote" or "vote#2"."""
    spec_hash: str
    """`EnvSpec.hash`."""
    outside: Mapping[str, RecordedThing] = {}
    """What it refers to outside the process, by the game's field, e.g. "problems"."""


_Content = TypeVar("_Content")
_GAMES = TypeAdapter(list[RecordedGame])
_OPTIONS = TypeAdapter(list[str])


def recorded_games(setups: Mapping[str, Setup[Any]]) -> list[RecordedGame]:
    """Return the games of a run as they are recorded.

    Args:
        setups: The games by name.

    Raises:
        SettingsError: Something that a game refers to cannot be used.
    """
    games = []
    for name, setup in setups.items():
        outside = {}
        for field, thing in setup.environment.outside(setup.config).items():
            outside[field] = RecordedThing(value=thing.value, digest=thing.digest)
        games.append(RecordedGame(name=name, spec_hash=setup.spec.hash, outside=outside))
    return games


def start_record(games: Sequence[RecordedGame], options: Sequence[str]) -> dict[str, Any]:
    """Return the keys of `settings.json` that record a start.

    Args:
        games: The games that the run trains on.
        options: The options for ms-swift.
    """
    return {GAMES: [game.model_dump() for game in games], OPTIONS: list(options)}


def content_differences(saved: Mapping[str, Any], games: Sequence[RecordedGame]) -> list[str]:
    """Return a sentence for each file, or the like, that has the same name but another content.

    Args:
        saved: The earlier run's `settings.json`; without games, nothing is compared.
        games: The current games.

    Raises:
        RunFolderError: The recorded games cannot be read.
    """
    now = {game.name: game for game in games}
    # Several games may read one file.
    lines: dict[str, None] = {}
    for game in _read(saved, GAMES, _GAMES) or ():
        if game.name not in now:
            continue
        for field, before in game.outside.items():
            current = now[game.name].outside.get(field)
            if current is None or current.value != before.value:
                continue
            if current.digest != before.digest:
                line = (
                    f"{field}={before.value}: its content has changed, from "
                    f"{_shown_digest(before.digest)} to {_shown_digest(current.digest)}"
                )
                lines[line] = None
    return list(lines)


def rule_differences(saved: Mapping[str, Any], games: Sequence[RecordedGame]) -> list[str]:
    """Return a sentence for each game whose hash is another one.

    Args:
        saved: The earlier run's `settings.json`; without games, nothing is compared.
        games: The current games.

    Raises:
        RunFolderError: The recorded games cannot be read.
    """
    recorded = _read(saved, GAMES, _GAMES)
    if recorded is None:
        return []
    before = {game.name: game.spec_hash for game in recorded}
    now = {game.name: game.spec_hash for game in games}
    lines = []
    for name, was, current in _changed(before, now):
        lines.append(
            f"{name}: its rules, prompts or tools have changed; their hash was {was or _NO_HASH}, "
            f"is {current or _NO_HASH}"
        )
    return lines


def option_differences(saved: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Return a sentence for each option for ms-swift that differs.

    Args:
        saved: The earlier run's `settings.json`; without options, nothing is compared.
        options: The current options.

    Raises:
        RunFolderError: The recorded options cannot be read.
    """
    recorded = _read(saved, OPTIONS, _OPTIONS)
    if recorded is None:
        return []
    lines = []
    for name, was, current in _changed(option_values(recorded), option_values(options)):
        lines.append(
            f"{name} (option for ms-swift): was {_shown_value(was)}, is {_shown_value(current)}"
        )
    return lines


def _changed(
    before: Mapping[str, str], now: Mapping[str, str]
) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield name, earlier and current value of what differs, by name; None: it is missing."""
    for name in sorted(before.keys() | now.keys()):
        was = before.get(name)
        current = now.get(name)
        if was != current:
            yield name, was, current


def _read(saved: Mapping[str, Any], key: str, kind: TypeAdapter[_Content]) -> _Content | None:
    """Return a part of a run's `settings.json`; None if the run did not record it."""
    if key not in saved:
        return None
    try:
        return kind.validate_python(saved[key])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RunFolderError(
            f"{SETTINGS_FILE} of the run to resume: {key} is not from this version "
            f"({first['msg']}); restore the file, or start a new run."
        ) from error


def _shown_digest(digest: str) -> str:
    """Return a digest for a message, with the first digits of a sha256."""
    if not digest.startswith(_SHA256):
        return digest
    return f"{digest[: len(_SHA256) + _SHOWN_DIGITS]}…"


def _shown_value(value: str | None) -> str:
    """Return the value of an option for a message; None: it is not given."""
    if value is None:
        return "not given"
    return value or "given"
