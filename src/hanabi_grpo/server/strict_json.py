"""JSON as its authors meant it: no duplicate keys, no NaN, no numbers or depths that break what comes after."""

import json
import math
from typing import Any

MAX_DEPTH = 32
MAX_CONTAINERS = 1 << 20
"""Objects and lists together: each takes 20 times the memory of its two bytes."""
_MAX_DIGITS = 32


def strict_json(text: bytes | str) -> Any:
    """Parse JSON that a client wrote.

    Python's own parser takes NaN, the last of two equal keys, half surrogate pairs and any depth up to the
    interpreter's limit, each of which fails later and elsewhere.

    Raises:
        ValueError: Says what is wrong; never another exception, whatever the bytes.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        containers = decoded.count("{") + decoded.count("[")
        if containers > MAX_CONTAINERS:
            raise ValueError(f"{containers} objects and lists; allowed are {MAX_CONTAINERS}")
        value = json.loads(
            decoded,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from None
    _check(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"key {name[:80]!r} is there twice")
            seen.add(name)
    return made


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; write a finite number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is too large for a number")
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits; allowed are {_MAX_DIGITS}")
    return int(text)


def _check(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str) and not item.isascii():
                _check_text(item)
        if not below:
            return
        level = below
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a surrogate pair at character {error.start} of a string") from None
