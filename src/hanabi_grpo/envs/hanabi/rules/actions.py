"""Moves as text, both ways.

Grammar, case-insensitive: `Play 0`, `Discard 1`, `Hint player_1 red`, `Hint player_1 3`, with a
colour's letter or name; with two players the target may be left out (`Hint R`, `Hint 2`). Slots
count from the oldest card, 0; ranks are the printed ones, from 1."""

import functools
import re

from hanabi_grpo.envs.hanabi.rules.presets import MAX_PLAYERS
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, COLOR_NAMES, Action
from hanabi_grpo.types import player_name

_COLORS = {name: color for color, name in enumerate(COLOR_NAMES)} | {
    letter.lower(): color for color, letter in enumerate(COLOR_LETTERS)
}
# ASCII keeps look-alikes out: with Unicode rules a long s matches "s" and Arabic figures are
# digits.
_MOVE = re.compile(
    rf"(?:(?P<verb>play|discard)[ \t]+(?P<slot>[0-9])"
    rf"|hint[ \t]+(?:player_(?P<target>[0-{MAX_PLAYERS - 1}])[ \t]+)?"
    rf"(?:(?P<rank>[1-5])|(?P<color>{'|'.join(_COLORS)})))",
    re.ASCII | re.IGNORECASE,
)


# One object per move: making a move and finding it among the legal ones then cost a look-up.


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


@functools.lru_cache(maxsize=4096)  # asked for at every move
def format_action(action: Action, *, style: str, num_players: int) -> str:
    """Return the text of a move in style "full" (`Hint player_1 red`) or "compact" (`Hint player_1
    R` or `Hint R`).
    """
    if action.slot >= 0:
        return f"{action.kind.capitalize()} {action.slot}"
    colors = COLOR_NAMES if style == "full" else COLOR_LETTERS
    value = colors[action.value] if action.kind == "hint_color" else str(action.value + 1)
    return (
        f"Hint {value}"
        if style == "compact" and num_players == 2
        else f"Hint {player_name(action.target)} {value}"
    )


def parse_action(text: str, *, num_players: int, player: int) -> Action | None:
    """Return the move that any text at all is when `player` says it, legal or not, or None when it
    is none.
    """
    match = _MOVE.fullmatch(text.strip())
    if match is None:
        return None
    if match["verb"]:
        return (play if match["verb"].lower() == "play" else discard)(int(match["slot"]))
    if not match["target"] and num_players > 2:
        return None
    target = int(match["target"] or 1 - player)
    if match["rank"]:
        return hint_rank(target, int(match["rank"]) - 1)
    return hint_color(target, _COLORS[match["color"].lower()])
