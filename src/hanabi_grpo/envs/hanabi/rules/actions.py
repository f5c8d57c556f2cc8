"""Moves as text, both ways.

Grammar, case-insensitive: `Play 0`, `Discard 1`, `Hint player_1 red`, `Hint player_1 3`, with a
colour's letter or name. With two players the target may be left out (`Hint R`, `Hint 2`). Slots
count from the oldest card, 0; ranks are the printed ones, from 1.
"""

import functools
import re

from hanabi_grpo.envs.hanabi.rules.presets import MAX_PLAYERS
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, COLOR_NAMES, Action
from hanabi_grpo.types import player_name

_COLOR_OF_NAME = {name: color for color, name in enumerate(COLOR_NAMES)}
_COLOR_OF_LETTER = {letter.lower(): color for color, letter in enumerate(COLOR_LETTERS)}
_COLORS = _COLOR_OF_NAME | _COLOR_OF_LETTER
"""Lower-case names and letters to colours, from 0. Names come first, so that the pattern prefers
them."""

_CARD_MOVE = r"(?P<verb>play|discard)[ \t]+(?P<slot>[0-9])"
_TARGET = rf"(?:player_(?P<target>[0-{MAX_PLAYERS - 1}])[ \t]+)?"
_VALUE = rf"(?:(?P<rank>[1-5])|(?P<color>{'|'.join(_COLORS)}))"
_HINT_MOVE = rf"hint[ \t]+{_TARGET}{_VALUE}"
# ASCII keeps look-alikes out: with Unicode rules a long s matches "s" and Arabic figures are
# digits.
_MOVE = re.compile(rf"(?:{_CARD_MOVE}|{_HINT_MOVE})", re.ASCII | re.IGNORECASE)

_FORMAT_CACHE_SIZE = 4096
"""More than the moves of all boards in both styles."""


# One object per move, so that creating a move and finding it among the legal ones is a lookup.


@functools.cache
def play(slot: int) -> Action:
    """Return the move that plays the card of a slot."""
    return Action("play", slot=slot)


@functools.cache
def discard(slot: int) -> Action:
    """Return the move that discards the card of a slot."""
    return Action("discard", slot=slot)


@functools.cache
def hint_color(target: int, color: int) -> Action:
    """Return the hint of a colour, from 0, to an absolute seat."""
    return Action("hint_color", target=target, value=color)


@functools.cache
def hint_rank(target: int, rank: int) -> Action:
    """Return the hint of a rank, from 0, to an absolute seat."""
    return Action("hint_rank", target=target, value=rank)


@functools.lru_cache(maxsize=_FORMAT_CACHE_SIZE)  # needed at every move
def format_action(action: Action, *, style: str, num_players: int) -> str:
    """Return the text of a move.

    Args:
        action: The move.
        style: "full" (`Hint player_1 red`) or "compact" (`Hint player_1 R`).
        num_players: Players of the game; with two, a compact hint leaves out its target (`Hint R`).
    """
    if action.slot >= 0:
        return f"{action.kind.capitalize()} {action.slot}"
    if action.kind == "hint_rank":
        value = str(action.value + 1)
    elif style == "full":
        value = COLOR_NAMES[action.value]
    else:
        value = COLOR_LETTERS[action.value]
    if style == "compact" and num_players == 2:
        return f"Hint {value}"
    return f"Hint {player_name(action.target)} {value}"


def parse_action(text: str, *, num_players: int, player: int) -> Action | None:
    """Return the move that a text names, or None if it is not a move.

    Args:
        text: Any text.
        num_players: Players of the game; with more than two, a hint needs its target.
        player: The seat that moves; with two players, a hint without a target goes to the other.

    Returns:
        The move, legal or not: the rules of the current position are not consulted.
    """
    match = _MOVE.fullmatch(text.strip())
    if match is None:
        return None
    if match["verb"]:
        slot = int(match["slot"])
        return play(slot) if match["verb"].lower() == "play" else discard(slot)
    if match["target"]:
        target = int(match["target"])
    elif num_players == 2:
        target = 1 - player
    else:
        return None
    if match["rank"]:
        return hint_rank(target, int(match["rank"]) - 1)
    return hint_color(target, _COLORS[match["color"].lower()])
