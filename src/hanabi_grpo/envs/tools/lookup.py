"""Lookup in a small table: one text per key, and similar keys for an unknown key."""

import hashlib
from collections.abc import Mapping
from difflib import get_close_matches

from hanabi_grpo.envs.tools.tool import MAX_RESULT, Tool, ToolError
from hanabi_grpo.errors import SettingsError

MAX_ROWS = 10_000
_SEARCHED = 200
"""Number of keys searched for similar ones, so that a call takes only a few milliseconds."""
_NEAR = 5
"""Number of keys suggested to a player for an unknown key."""


def lookup_tool(
    table: Mapping[str, str],
    *,
    name: str = "lookup",
    description: str = "what the table says of a key",
    argument: str = "key",
    calls_per_turn: int | None = None,
    calls_per_episode: int | None = None,
) -> Tool:
    """Return a tool that looks up a key, ignoring case and extra whitespace.

    Example:
        lookup_tool({"Rhine": "1233 km", "Elbe": "1094 km"}, description="length of a river")

    Args:
        table: A text for each key.
        name: Name of the tool.
        description: What players read.
        argument: Name of the argument.
        calls_per_turn: See `Tool`.
        calls_per_episode: See `Tool`.

    Raises:
        SettingsError: The table is empty or too large, two keys differ only in case and
            whitespace, or a text exceeds the maximum length of a result.
    """
    if not 1 <= len(table) <= MAX_ROWS:
        raise SettingsError(f"tool {name!r}: {len(table)} rows; allowed: 1 to {MAX_ROWS}.")
    rows: dict[str, str] = {}
    keys: dict[str, str] = {}
    for key, text in table.items():
        plain = _plain(key)
        if plain in rows:
            raise SettingsError(f"tool {name!r}: two rows for the key {key!r}; keep one of them.")
        if len(text) > MAX_RESULT:
            raise SettingsError(
                f"tool {name!r}: the text of {key!r} has {len(text)} characters; allowed: "
                f"{MAX_RESULT}."
            )
        rows[plain] = text
        keys[plain] = key

    def look_up(wanted: str) -> str:
        plain = _plain(wanted)
        if plain in rows:
            return rows[plain]
        near = get_close_matches(plain[:100], list(rows)[:_SEARCHED], n=_NEAR) or list(rows)[:_NEAR]
        known = ", ".join(keys[key] for key in near)
        raise ToolError(f"no row for {wanted[:60]!r}; known are {len(rows)} keys, e.g. {known}.")

    return Tool(
        name=name,
        description=description,
        run=look_up,
        argument=argument,
        calls_per_turn=calls_per_turn,
        calls_per_episode=calls_per_episode,
        version=hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()[:12],
    )


def _plain(key: str) -> str:
    return " ".join(key.split()).casefold()
