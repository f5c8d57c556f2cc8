"""From whatever a model wrote to lines that may be its answer. Linear in the length of the text; never raises."""

import re
from collections.abc import Iterable, Iterator

_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)
_DECORATION = " \t\r\f\v*_`~#>|\"'.,;!-+=()[]{}$\u2018\u2019\u201c\u201d\u2022\u2013\u2014\x00"
_LABEL_WORDS = frozenset(
    {"my", "the", "a", "next", "final", "chosen", "best", "selected", "is"}
    | {"action", "move", "answer", "reply", "choice", "decision"}
)
MAX_LINE_CHARS = 120
"""No decorated answer is longer; longer lines are prose and are skipped unread."""


def answer_lines(reply: str) -> Iterator[str]:
    r"""Yield the short lines of a reply, last first, without markdown, quotes and a label such as `Action:`.

    Think blocks are not read; a reply whose thinking was cut off has no lines.

    Args:
        reply: Any string at all.

    Example:
        list(answer_lines("<think>bet?</think>\nI am strong.\n**Action: bet**")) == ["bet", "I am strong"]
    """
    answer = _without_thinking(reply)
    if answer is None:
        return
    for line in reversed(answer.splitlines()):
        if line and len(line) <= MAX_LINE_CHARS:
            yield _undecorated(line)


def last_choice(reply: str, choices: Iterable[str]) -> str | None:
    r"""Return the choice that the last line naming one names, or None; upper and lower case are the same.

    A line counts when it is a choice and nothing else; prose around it makes it none.

    Example:
        last_choice("I could check.\nMove: Bet.", ("check", "bet")) == "bet"
    """
    known = {choice.lower(): choice for choice in choices}
    return next((known[line.lower()] for line in answer_lines(reply) if line.lower() in known), None)


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
