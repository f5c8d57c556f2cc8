"""JSON into msgspec structs; what does not fit is named with its place, its value and what is allowed."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from hanabi_grpo.errors import shown

_Kind = TypeVar("_Kind")
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>.*)`$")
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_NOTHING = object()
_QUOTED_BYTES = 1 << 20
"""Longer text is not read a second time for a message: as plain objects it takes many times its size."""


def read_struct(kind: type[_Kind], data: Any) -> _Kind:
    """Return JSON as a struct: every type checked, no number that is not finite, no depth that the types do not have.

    Args:
        kind: What it must be, a struct or `dict`.
        data: The text as bytes, or what a parser made of it.

    Raises:
        ValueError: What is wrong, e.g. "tasks.0.seed='3': Expected `int`, got `str`".
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
    quoted = value is not _NOTHING and (message.startswith("Expected") or not isinstance(value, Mapping))
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
