"""From whatever a model wrote to lines that may be its answer.

Linear in the length of the text; never raises.
"""

from collections.abc import Iterable, Iterator

from hanabi_grpo.envs.texts import think_parts

_DECORATION = " \t\r\f\v*_`~#>|\"'.,;!-+=()[]{}$\u2018\u2019\u201c\u201d\u2022\u2013\u2014\x00"
_DECORATION_BUT_SIGNS = "".join(mark for mark in _DECORATION if mark not in "+-")
"""For choices such as -1 and 1, which only a sign tells apart."""
_LABEL_WORDS = frozenset(
    {
        "my",
        "the",
        "a",
        "next",
        "final",
        "chosen",
        "best",
        "selected",
        "is",
        "action",
        "move",
        "answer",
        "reply",
        "choice",
        "decision",
    }
)
"""Words that may stand before the colon of a line such as "My final move: Play 1"."""
MAX_LINE_CHARS = 120
"""No decorated answer is longer; longer lines are prose and are skipped unread."""


def answer_lines(
    reply: str, longest: int = MAX_LINE_CHARS, marks: str = _DECORATION
) -> Iterator[str]:
    r"""Yield the short lines of a reply, last first, undecorated.

    They come without markdown, quotes and a label such as `Action:`. Think blocks are not read; a
    reply whose thinking was cut off has no lines.

    Args:
        reply: Any text.
        longest: Characters of a line that may be an answer.
        marks: Characters that do not count at its ends.

    Example:
        reply = "<think>bet?</think>\nI am strong.\n**Action: bet**"
        list(answer_lines(reply)) == ["bet", "I am strong"]
    """
    _, outside, is_cut_off = think_parts(reply)
    if is_cut_off:
        return
    lines = "\n".join(outside).splitlines()
    for line in reversed(lines):
        if line and len(line) <= longest:
            yield undecorated(line, marks)


def last_choice(reply: str, choices: Iterable[str]) -> str | None:
    r"""Return the choice that the last line naming one names, or None.

    A line counts when it is a choice and nothing else; prose around it makes it none. Upper and
    lower case are the same. Marks at the ends of a choice count as little as those of a line; signs
    do where choices such as -1 and 1 differ in nothing else.

    Example:
        last_choice("I could check.\nMove: Bet.", ("check", "bet")) == "bet"
    """
    texts = tuple(choices)
    marks = _DECORATION
    by_reading = {undecorated(choice).lower(): choice for choice in texts}
    if len(by_reading) < len({text.lower() for text in texts}):
        marks = _DECORATION_BUT_SIGNS
        by_reading = {undecorated(choice, marks).lower(): choice for choice in texts}
    for line in answer_lines(reply, marks=marks):
        choice = by_reading.get(line.lower())
        if choice is not None:
            return choice
    return None


def undecorated(line: str, marks: str = _DECORATION) -> str:
    """Return a line without markdown, quotes and marks at its ends, and without its label.

    Args:
        line: The line.
        marks: Characters that do not count at its ends.

    Example:
        undecorated("**Action: bet**") == "bet"
    """
    line = line.strip(marks)
    label, colon, rest = line.partition(":")
    if colon and _LABEL_WORDS.issuperset(label.strip(_DECORATION).lower().split()):
        return rest.strip(marks)
    return line
