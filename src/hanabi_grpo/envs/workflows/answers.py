"""What a reply answers, when two answers are the same, and what a majority of them is worth."""

import re
from collections import Counter
from collections.abc import Sequence

MAX_CHARS = 4000
"""Longest text that counts as an answer."""
_DECORATION = " \t\r*_`#>"
_LABEL = frozenset({"the", "my", "final", "answer"})
"""Words that may stand before the colon of a line such as "My final answer: 7"."""
_BOX = "\\boxed{"
_MATHS = (("\\(", "\\)"), ("\\[", "\\]"))
"""What LaTeX puts around maths beside the dollar."""
_MAX_DIGITS = 100
"""Longer texts are compared as texts, never as numbers."""
_MINUS = "\u2212"
"""The minus of mathematical texts."""
_NUMBER = re.compile(
    r"(?P<sign>[+-]?) ?[$\u20ac%]* ?(?P<inner_sign>[+-]?) ?"
    # Thousands are set apart by commas or spaces, in India also hundreds of them: 12,34,567.
    r"(?P<whole>\d{1,3}(?:,\d{2,3})*,\d{3}|\d{1,3}(?: \d{3})+|\d*)"
    r"(?:\.(?P<fraction>\d*))? ?[$\u20ac%]*",
    re.ASCII,
)
_SPACE_OF_TEXT = re.compile(r"(?<!\d) | (?!\d)", re.ASCII)
"""A space that does not count: one that does not keep two numbers apart."""


def read_answer(text: str, style: str) -> str | None:
    r"""Return the answer that a text gives, None where it gives none; linear in its length.

    In the compact style it is what follows the last `=`, if there is one. In the full style it
    stands behind the last `Answer:` that begins a line, on that line or on all lines after it, or
    in the last `\boxed{}`.
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
    """Return a text that is equal for equal answers.

    Case, currency and the way to write a number do not count, nor do spaces, unless they or a comma
    keep two numbers apart.

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
    """Return what the most frequent answer is worth, 0 where nobody answered.

    Of tied answers it is the mean. Drawing one of them has this expectation, and no seat decides
    more ties than another.

    Args:
        answers: One per seat, None of a seat that gave none.
        correct: Per seat 1.0 where its answer is right, else 0.0.
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
    """Return an answer without its box and without marks at its ends, None for none."""
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
    r"""Return what the last `\boxed{}` holds; the whole text where its brace is never closed."""
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
