"""Extract the lines of a model's reply that may be its answer.

Takes time linear in the length of the text, and never raises an error.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hanabi_grpo.envs.texts import think_parts

_DECORATION = " \t\r\f\v*_`~#>|\"'.,;!-+=()[]{}$\u2018\u2019\u201c\u201d\u2022\u2013\u2014\x00"
_NOTATION = "-+=*~_#"
"""Marks that may be a part of a choice."""
_ANNOTATION = re.compile(r"(?<=\w)[+#!?]+$")
"""Check, mate and the like behind a move of chess, which many leave out."""
_WORD = re.compile(r"\b[A-Za-z][a-z]+\b", re.ASCII)
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
    for line in _answer_lines(reply, longest):
        yield undecorated(line, marks)


def _answer_lines(reply: str, longest: int) -> Iterator[str]:
    """Yield the short lines of a reply outside its thoughts, last first."""
    _, outside, is_cut_off = think_parts(reply)
    if is_cut_off:
        return
    lines = "\n".join(outside).splitlines()
    for line in reversed(lines):
        if line and len(line) <= longest:
            yield line


def last_choice(reply: str, choices: Iterable[str]) -> str | None:
    r"""Return the choice named by the last line that names one, or None.

    A line counts only if it is a choice and nothing else, without prose around it. Marks around it
    are ignored, except those with which choices begin or end, and so is case, unless choices use
    both cases as notation does (`bxa5` and `Bxa5` in chess).

    Example:
        last_choice("I could check.\nMove: Bet.", ("check", "bet")) == "bet"
    """
    read = ChoiceReader(tuple(choices))
    for line in _answer_lines(reply, MAX_LINE_CHARS):
        choice = read.choice(line)
        if choice is not None:
            return choice
    return None


class ChoiceReader:
    """Reads lines as choices."""

    def __init__(self, choices: Sequence[str]) -> None:
        """Take all choices, which decide together what a line has to say."""
        kept = set()
        for text in choices:
            bare = _ANNOTATION.sub("", text.strip())
            kept |= {mark for mark in (bare[:1], bare[-1:]) if mark in _NOTATION}
        self._marks = "".join(mark for mark in _DECORATION if mark not in kept)
        self._is_exact = _has_both_cases(" ".join(choices))
        self._choices = frozenset(choices)
        self.readings = tuple(self._reading(text) for text in choices)
        """What of each choice a line has to name, in their order."""
        counts = Counter(self.readings)
        self._by_reading = {}
        for reading, text in zip(self.readings, choices, strict=True):
            if reading and counts[reading] == 1:
                self._by_reading[reading] = text

    def choice(self, line: str) -> str | None:
        """Return the choice that a line is, or None."""
        text = line.strip()
        if text in self._choices:
            return text
        return self._by_reading.get(self._reading(line))

    def _reading(self, line: str) -> str:
        text = _ANNOTATION.sub("", undecorated(line, self._marks))
        return text if self._is_exact else text.lower()


def _has_both_cases(text: str) -> bool:
    """Return whether a text has letters of both cases besides those of words, e.g. "Nxf3"."""
    rest = _WORD.sub("", text)
    return rest != rest.lower() and rest != rest.upper()


def undecorated(line: str, marks: str = _DECORATION) -> str:
    """Return a line without its label, and without markdown, quotes and marks at its ends.

    The sign of a number stays.

    Args:
        line: The line.
        marks: Characters to strip from both ends.

    Example:
        undecorated("**Action: bet**") == "bet"
    """
    line = _strip(line, marks)
    label, colon, rest = line.partition(":")
    if colon and _LABEL_WORDS.issuperset(label.strip(_DECORATION).lower().split()):
        return _strip(rest, marks)
    return line


def _strip(text: str, marks: str) -> str:
    """Return a text without marks at its ends, but with the sign of a number that begins it."""
    stripped = text.lstrip(marks)
    start = len(text) - len(stripped)
    if stripped[:1].isdigit() and start and text[start - 1] in "+-":
        stripped = text[start - 1 :]
    return stripped.rstrip(marks)
