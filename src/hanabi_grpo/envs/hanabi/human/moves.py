"""What people type as a move, and why a move is not allowed."""

import re

from hanabi_grpo.envs.hanabi.prompts import parse_reply
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, COLOR_NAMES, Action, PlayerView
from hanabi_grpo.types import player_name

_SHORT = re.compile(
    r"(?P<verb>p|play|d|discard)\s*(?P<slot>[0-9])"
    r"|(?:h|hint)\s*(?:(?:player_|p)?(?P<target>[0-9])\s*)?"
    rf"(?:(?P<rank>[1-9])|(?P<color>{'|'.join(COLOR_NAMES)}|[{COLOR_LETTERS}]))",
    re.ASCII | re.IGNORECASE,
)
_MAX_CHARS = 200


def read_move(text: str, view: PlayerView) -> Action | str:
    """Return the legal move that a line means, or why it is none.

    Besides all that a model may reply, short forms are read: `p0`, `d 2`, `hr`, `h red`, `h1`, and with more than two
    players the number of the player first: `h2r`, `h 2 1`.

    Args:
        text: One line, any string at all.
        view: What the player sees.
    """
    action = parse_reply(text, num_players=view.num_players, player=view.player)
    if action is None:
        match = _SHORT.fullmatch(text.strip()) if len(text) <= _MAX_CHARS else None
        if match is None:
            return "That is no move. A move is like p0, d2 or h red; ? lists all that you have."
        if match["verb"]:
            action = (play if match["verb"][0] in "pP" else discard)(int(match["slot"]))
        else:
            if match["target"]:
                target = int(match["target"])
            elif view.num_players == 2:
                target = 1 - view.player
            else:
                others = " or ".join(str(seat) for seat in range(view.num_players) if seat != view.player)
                return f"A hint to whom? Put the player's number first ({others}), e.g. {_example(view)}."
            if match["rank"]:
                action = hint_rank(target, int(match["rank"]) - 1)
            else:
                action = hint_color(target, COLOR_LETTERS.index(match["color"][0].upper()))
    return action if action in view.legal_actions else why_not(action, view)


def why_not(action: Action, view: PlayerView) -> str:
    """Return why the rules forbid a move here."""
    if action.slot >= 0:
        if action.slot >= len(view.own_hand):
            return f"There is no slot {action.slot}: you hold slots 0 to {len(view.own_hand) - 1}."
        return f"All {view.max_hints} hint tokens are there, so nothing may be discarded: play a card or give a hint."
    if not view.hints:
        return "No hint token is left: play or discard a card."
    if action.target == view.player:
        return "A hint goes to another player, not to yourself."
    if action.target >= view.num_players:
        return f"There is no {player_name(action.target)}: the players are 0 to {view.num_players - 1}."
    whom = player_name(action.target)
    if action.kind == "hint_color":
        if action.value >= view.num_colors:
            return f"No card of this board is {COLOR_NAMES[action.value]}."
        return f"A hint must touch a card, and {whom} holds no {COLOR_NAMES[action.value]} one."
    if action.value >= view.num_ranks:
        return f"The ranks of this board are 1 to {view.num_ranks}."
    return f"A hint must touch a card, and {whom} holds no {action.value + 1}."


def short_form(action: Action, view: PlayerView) -> str:
    """Return the shortest text that `read_move` reads as this move, e.g. "p0", "hr" or "h2r"."""
    if action.slot >= 0:
        return f"{action.kind[0]}{action.slot}"
    whom = "" if view.num_players == 2 else str(action.target)
    value = COLOR_LETTERS[action.value].lower() if action.kind == "hint_color" else str(action.value + 1)
    return f"h{whom}{value}"


def _example(view: PlayerView) -> str:
    return short_form(hint_color((view.player + 1) % view.num_players, 0), view)
