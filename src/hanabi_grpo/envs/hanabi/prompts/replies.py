"""From whatever a model wrote to a move, or to None. Linear in the length of the text; never raises."""

import re

from hanabi_grpo.envs.hanabi.rules.actions import parse_action
from hanabi_grpo.envs.hanabi.rules.view import Action

_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)
_DECORATION = " \t\r\f\v*_`~#>|\"'.,;!-+=()[]{}$\u2018\u2019\u201c\u201d\u2022\u2013\u2014\x00"
_LABEL_WORDS = frozenset(
    {"my", "the", "a", "next", "final", "chosen", "best", "selected", "is"}
    | {"action", "move", "answer", "reply", "choice", "decision"}
)
_MAX_MOVE_CHARS = 120
"""No decorated move is longer; longer lines are prose and are skipped unread."""


def parse_reply(text: str, *, num_players: int, player: int) -> Action | None:
    """Return the last line of a reply that is a move.

    Think blocks are not read. A line counts when it is a move after markdown, quotes and a label such as
    `Action:` are taken off; prose around a move on the same line makes it none.

    Args:
        text: Any string at all.
        num_players: Decides whether a hint may leave out its target.
        player: Seat that replied, from 0.

    Returns:
        The move, which the rules may still forbid; None when there is none, or when thinking was cut off.
    """
    answer = _without_thinking(text)
    if answer is None:
        return None
    for line in reversed(answer.splitlines()):
        if not line or len(line) > _MAX_MOVE_CHARS:
            continue
        action = parse_action(_undecorated(line), num_players=num_players, player=player)
        if action is not None:
            return action
    return None


def _without_thinking(text: str) -> str | None:
    """Return the text outside think blocks, or None when the last block is open.

    A closing tag without an opening one ends a block that the prompt opened (some chat templates do).
    """
    kept: list[str] = []
    start = 0
    thinking = False
    for tag in _THINK_TAG.finditer(text):
        if tag.group(1):
            if not thinking:
                kept.clear()
            thinking = False
        elif not thinking:
            kept.append(text[start : tag.start()])
            thinking = True
        start = tag.end()
    if thinking:
        return None
    kept.append(text[start:])
    return "\n".join(kept)


def _undecorated(line: str) -> str:
    line = line.strip(_DECORATION)
    label, colon, rest = line.partition(":")
    if colon and _LABEL_WORDS.issuperset(label.strip(_DECORATION).lower().split()):
        line = rest.strip(_DECORATION)
    return line
