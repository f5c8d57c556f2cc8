"""Moves as text, both ways.

Grammar, case-insensitive: `Play 0`, `Discard 1`, `Hint player_1 red`, `Hint player_1 3`, with a colour's letter
or name; with two players the target may be left out (`Hint R`, `Hint 2`). Slots count from the oldest card, 0;
ranks are the printed ones, from 1.
"""

import functools
import re

from hanabi_grpo.envs.hanabi.rules.presets import MAX_PLAYERS
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, COLOR_NAMES, Action
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import player_name

STYLES = ("full", "compact")

_COLORS = {name: color for color, name in enumerate(COLOR_NAMES)} | {
    letter.lower(): color for color, letter in enumerate(COLOR_LETTERS)
}
# ASCII keeps look-alikes out: with Unicode rules a long s matches "s" and Arabic figures are digits.
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


def format_action(action: Action, *, style: str, num_players: int) -> str:
    """Return the text of a move.

    Args:
        action: The move.
        style: "full" (`Hint player_1 red`) or "compact" (`Hint player_1 R`, with two players `Hint R`).
        num_players: Players in the game.

    Raises:
        SettingsError: Unknown style.
        IllegalActionError: An action of no known kind, or a colour or seat that does not exist.
    """
    if style not in STYLES:
        raise SettingsError(f"style={style!r}: an action's text is one of {', '.join(STYLES)}.")
    if action.kind == "play":
        return f"Play {action.slot}"
    if action.kind == "discard":
        return f"Discard {action.slot}"
    if action.kind == "hint_rank":
        value = str(action.value + 1)
    elif action.kind == "hint_color" and 0 <= action.value < len(COLOR_NAMES):
        value = (COLOR_NAMES if style == "full" else COLOR_LETTERS)[action.value]
    else:
        raise IllegalActionError(f"{action!r}: kinds are play, discard, hint_color (values 0 to 4) and hint_rank.")
    if style == "compact" and num_players == 2:
        return f"Hint {value}"
    return f"Hint {player_name(action.target)} {value}"


def parse_action(text: str, *, num_players: int, player: int) -> Action | None:
    """Read one move; any string at all is allowed and whether the move is legal is the game's business.

    Args:
        text: One move on one line, nothing else.
        num_players: Players in the game; with two, a hint needs no target.
        player: Absolute seat of the player who speaks.

    Returns:
        The move, or None when the text is none.
    """
    match = _MOVE.fullmatch(text.strip())
    if match is None:
        return None
    if match["verb"]:
        return (play if match["verb"].lower() == "play" else discard)(int(match["slot"]))
    if match["target"]:
        target = int(match["target"])
    elif num_players == 2:
        target = 1 - player
    else:
        return None
    if match["rank"]:
        return hint_rank(target, int(match["rank"]) - 1)
    return hint_color(target, _COLORS[match["color"].lower()])
