"""Extracting the answer from a reply, comparing answers, and the value of a majority answer."""

import re
from collections import Counter
from collections.abc import Sequence

MAX_CHARS = 4000
"""Maximum length of an answer."""
_DECORATION = " \t\r*_`#>"
_LABEL = frozenset({"the", "my", "final", "answer"})
"""Words that may precede the colon of a line such as "My final answer: 7"."""
_BOX = "\\boxed{"
_MATHS = (("\\(", "\\)"), ("\\[", "\\]"))
"""LaTeX's math delimiters other than the dollar sign."""
_MAX_DIGITS = 100
"""Longer texts are compared as texts, never as numbers."""
_MINUS = "\u2212"
"""The mathematical minus sign."""
_NUMBER = re.compile(
    r"(?P<sign>[+-]?) ?[$\u20ac%]* ?(?P<inner_sign>[+-]?) ?"
    # Commas or spaces separate thousands; Indian notation also groups by two digits: 12,34,567.
    r"(?P<whole>\d{1,3}(?:,\d{2,3})*,\d{3}|\d{1,3}(?: \d{3})+|\d*)"
    r"(?:\.(?P<fraction>\d*))? ?[$\u20ac%]*",
    re.ASCII,
)
_SPACE_OF_TEXT = re.compile(r"(?<!\d) | (?!\d)", re.ASCII)
"""A space that can be ignored because it does not separate two numbers."""


def read_answer(text: str, style: str) -> str | None:
    r"""Return the answer in a text, or None if there is none, in time linear in its length.

    In the compact style, the answer follows the last `=`, if there is one. In the full style, it
    follows the last `Answer:` at the start of a line, on that line or on all lines after it, or it
    is in the last `\boxed{}`.
    """
    if style == "compact":
        after_equals = text.rpartition("=")[2].strip()
        return after_equals[:MAX_CHARS] or None
    lines_below: list[str] = []
    for line in reversed(text.splitlines()):
        label, colon, rest = line.partition(":")
        if colon and _is_answer_label(label):
            return _clean(rest) or _clean("\n".join(reversed(lines_below)))
        if _BOX in line:
            boxed = _clean(line[line.rindex(_BOX) :])
            if boxed is not None:
                return boxed
        lines_below.append(line)
    return None


def _is_answer_label(label: str) -> bool:
    if len(label) >= MAX_CHARS:
        return False
    words = label.strip(_DECORATION).lower().split()
    return "answer" in words and _LABEL.issuperset(words)


def normalize(answer: str) -> str:
    """Return a canonical text that is the same for equal answers.

    Case, currency and number format are ignored, and so are spaces, unless they or a comma separate
    two numbers.

    Example:
        normalize("$1 200.50") == normalize("1,200.5") == "1200.5"
        normalize("1, 2") == "1,2"
    """
    words = " ".join(answer.split()).casefold().replace(_MINUS, "-")
    text = _SPACE_OF_TEXT.sub("", words)
    bare = words.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%").rstrip(".")
    number = _NUMBER.fullmatch(bare) if len(bare) < _MAX_DIGITS else None
    if number is None or not any(map(str.isdigit, bare)):
        return text
    if number["sign"] and number["inner_sign"]:
        return text
    whole = number["whole"].replace(",", "").replace(" ", "").lstrip("0") or "0"
    fraction = (number["fraction"] or "").rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    is_negative = "-" in (number["sign"], number["inner_sign"])
    return f"-{value}" if is_negative and value != "0" else value


def majority_worth(answers: Sequence[str | None], correct: Sequence[float]) -> float:
    """Return the value of the most frequent answer, or 0 if there are no answers.

    For tied answers, this is their mean value, which is the expectation of drawing one of them. No
    seat decides more ties than another.

    Args:
        answers: One answer per seat, None for a seat that gave none.
        correct: 1.0 or 0.0 per seat, for a right or wrong answer.
    """
    votes: Counter[str] = Counter()
    worth: dict[str, float] = {}
    for answer, is_correct in zip(answers, correct, strict=True):
        if answer is not None:
            votes[normalize(answer)] += 1
            worth[normalize(answer)] = is_correct
    if not votes:
        return 0.0
    most_votes = max(votes.values())
    tied = [worth[answer] for answer, count in votes.items() if count == most_votes]
    return sum(tied) / len(tied)


def _clean(text: str) -> str | None:
    """Return an answer without its box and without marks at its ends, or None if it is empty."""
    if _BOX in text:
        text = _box_content(text)
    text = text.strip().strip(_DECORATION + "$").strip()
    for opening, closing in _MATHS:
        if text.startswith(opening) and text.rstrip(".").endswith(closing):
            text = text.rstrip(".").removeprefix(opening).removesuffix(closing).strip()
    if not 0 < len(text) <= MAX_CHARS:
        return None
    return text


def _box_content(text: str) -> str:
    r"""Return the content of the last `\boxed{}`, or the whole text if its brace is not closed."""
    start = text.rindex(_BOX) + len(_BOX)
    depth = 1
    for end in range(start, len(text)):
        if text[end] == "{":
            depth += 1
        elif text[end] == "}":
            depth -= 1
        if depth == 0:
            return text[start:end]
    return text
