"""JSON into msgspec structs, and episodes as JSON: an object each, in a server's answer and as a
line of a record.

Reading trusts nothing: a missing field, a wrong type, a number that is not finite or lists that do
not fit together are an error that names the place, its value and what is allowed."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from hanabi_grpo.errors import ServerError, shown
from hanabi_grpo.types import MAX_PLAYERS, Episode

SCHEMA = 2
"""Version of the format of a recorded episode."""
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Kind = TypeVar("_Kind")
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_NOTHING = object()
_QUOTED_BYTES = 1 << 20
"""Longer text is not read a second time for a message: as plain objects it takes many times its
size.
"""


def read_struct(kind: type[_Kind], data: Any) -> _Kind:
    """Return JSON, as bytes or as a parser made it, as a struct or `dict`: every type checked,
    every number finite.

    A ValueError says what is wrong, e.g. "tasks.0.seed='3': Expected `int`, got `str`".
    """
    try:
        if isinstance(data, bytes):
            return msgspec.json.decode(data, type=kind)
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_named(str(error), data)) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _named(message: str, data: Any) -> str:
    steps: list[str | int] = []
    place = _PLACE.search(message)
    if place is not None:
        message = message[: place.start()]
        steps = [name or int(number) for name, number in _STEP.findall(place["path"])]
    field = _FIELD.fullmatch(message)
    if field is not None:
        steps.append(field[2][:80])
        message = "this field is missing" if field[1] == "missing required" else "no such field"
    name = ".".join(map(str, steps)) or "all of it"
    value = _NOTHING if place is not None and place["key"] else _value_at(data, steps)
    # What a struct says of itself names its fields.
    quoted = value is not _NOTHING and (
        message.startswith("Expected") or not isinstance(value, Mapping)
    )
    return f"{name}={shown(value)}: {message}" if quoted else f"{name}: {message}"


def _value_at(data: Any, steps: list[str | int]) -> Any:
    if isinstance(data, bytes) and len(data) > _QUOTED_BYTES:
        return _NOTHING
    try:
        value = msgspec.json.decode(data) if isinstance(data, bytes) else data
        for step in steps:
            value = value[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return _NOTHING
    return value


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """Return an episode as one JSON object, e.g. a line of `episodes/step_10.jsonl`."""
    row: dict[str, Any] = msgspec.to_builtins(episode)
    # Last, because they are long.
    turns = row.pop("turns")
    return {"schema": SCHEMA, **row, "turns": turns}


def episode_from_json(row: Mapping[str, Any]) -> Episode:
    """Return the episode of a JSON object; a ServerError names the field that is malformed, or a
    later schema.
    """
    try:
        if isinstance(row, Mapping) and row.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"schema={row['schema']!r:.40}: this version reads {SCHEMA} and older")
        return fitting(read_struct(Episode, row))
    except ValueError as error:
        raise ServerError(
            f"episode: {error}; does the other side run this version of hanabi_grpo?"
        ) from None


def fitting(episode: Episode) -> Episode:
    """Return an episode whose parts fit together and whose numbers are finite; a ValueError names
    what does not.
    """
    players = episode.num_players
    if not 1 <= players <= MAX_PLAYERS or len(episode.seats) not in (0, players):
        raise ValueError(
            f"num_players={players}, seats={episode.seats}; allowed: 1 to {MAX_PLAYERS}, and a "
            "seat each or none at all"
        )
    for index, turn in enumerate(episode.turns):
        if not 0 <= turn.player < players or len(turn.rewards) != players:
            raise ValueError(
                f"turns.{index}: player={turn.player} with {len(turn.rewards)} rewards, but "
                f"num_players={players}; "
                f"allowed: 0 to {players - 1}, and rewards for each"
            )
        if turn.logprobs and len(turn.logprobs) != len(turn.reply_ids):
            raise ValueError(
                f"turns.{index}: {len(turn.logprobs)} logprobs for {len(turn.reply_ids)} reply "
                "ids; allowed: one each, "
                "or none at all"
            )
        if not all(
            map(
                math.isfinite,
                (*turn.logprobs, *(value for one in turn.rewards for value in one.values())),
            )
        ):
            raise ValueError(f"turns.{index}: a logprob or a reward is not finite")
    return episode
