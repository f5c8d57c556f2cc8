"""Extract the lines of a model's reply that may be its answer.

Takes time linear in the length of the text, and never raises an error.
"""

from collections.abc import Iterable, Iterator

from hanabi_grpo.envs.texts import think_parts

_DECORATION = " \t\r\f\v*_`~#>|\"'.,;!-+=()[]{}$\u2018\u2019\u201c\u201d\u2022\u2013\u2014\x00"
_DECORATION_BUT_SIGNS = "".join(mark for mark in _DECORATION if mark not in "+-")
"""For choices such as -1 and 1, which differ only in their sign."""
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
"""Words that may precede the colon of a line such as "My final move: Play 1"."""
MAX_LINE_CHARS = 120
"""Maximum length of a decorated answer; longer lines are prose and are skipped."""


def answer_lines(
    reply: str, longest: int = MAX_LINE_CHARS, marks: str = _DECORATION
) -> Iterator[str]:
    r"""Yield the short lines of a reply, last first, undecorated.

    Markdown, quotes and a label such as `Action:` are removed. Think blocks are ignored; a reply
    whose thinking was cut off has no lines.

    Args:
        reply: Any text.
        longest: Maximum length of a line that may be an answer.
        marks: Characters to strip from both ends of a line.

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
    r"""Return the choice named by the last line that names one, or None.

    A line counts only if it is a choice and nothing else, without prose around it. Case does not
    matter. Marks at the ends of a choice are ignored, as in a line, except for signs if choices
    such as -1 and 1 differ only in them.

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
    """Return a line without its label, and without markdown, quotes and marks at its ends.

    Args:
        line: The line.
        marks: Characters to strip from both ends.

    Example:
        undecorated("**Action: bet**") == "bet"
    """
    line = line.strip(marks)
    label, colon, rest = line.partition(":")
    if colon and _LABEL_WORDS.issuperset(label.strip(_DECORATION).lower().split()):
        return rest.strip(marks)
    return line
