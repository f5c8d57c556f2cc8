"""Extracting the answer from a reply, comparing answers, and the value of a majority answer."""

import re
from collections import Counter
from collections.abc import Sequence

MAX_CHARS = 4000
"""Maximum length of an answer."""
_DECORATION = " \t\r*_`#>"
_LABEL = frozenset({"the", "my", "final", "answer"})
"""Words that may precede the colon of a line such as "My final answer: 7"."""
_EMPHASIS = "*_`"
"""Marks that enclose a text in Markdown."""
_BULLET = re.compile(r"\s*(?:[-+\u2022\u2013\u2014]|\d{1,3}[.)])\s+", re.ASCII)
"""Start of a list item."""
_QUOTE = re.compile(r"(?:#+|>+)\s+")
"""Start of a heading or a quotation."""
_BOX = "\\boxed{"
_PAIRS = (
    *((mark, mark) for mark in ("```", "$$", "**", "__", "*", "_", "`", "$")),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
)
"""Marks around a whole answer: Markdown's, and LaTeX's math delimiters."""
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
_ASSIGNMENT = re.compile(r"[A-Za-z](?:_?\w)?\s*=\s*(?P<value>[^=]+)", re.ASCII)
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
            beside = _without_marks_of(label, rest)
            return clean(beside) or clean("\n".join(reversed(lines_below)))
        if _BOX in line:
            boxed = clean(_from_last_box(line, lines_below))
            if boxed is not None:
                return boxed
        lines_below.append(line)
    return None


def _is_answer_label(label: str) -> bool:
    if len(label) >= MAX_CHARS:
        return False
    bullet = _BULLET.match(label)
    if bullet is not None:
        label = label[bullet.end() :]
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


def is_same(solution: str, answer: str) -> bool:
    """Return whether an answer is the solution, apart from how the two are written.

    Marks around the solution do not matter, and neither does a variable that only one of the two
    names.

    Args:
        solution: The solution, as its source has it.
        answer: An answer, as `read_answer` returns it.

    Example:
        is_same("$x = 1{,}200$", "1200")
    """
    bare = clean(solution) or solution
    given = normalize(answer)
    if given in (normalize(solution), normalize(bare), normalize(_value(bare))):
        return True
    return normalize(_value(answer)) == normalize(bare)


def _value(text: str) -> str:
    """Return the right-hand side of "x = 7", and other texts unchanged."""
    assignment = _ASSIGNMENT.fullmatch(text)
    return assignment["value"] if assignment else text


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


def _without_marks_of(label: str, rest: str) -> str:
    """Return what follows the colon of a label, without the end of the marks that begin the label.

    Example:
        _without_marks_of("**Answer", "** 7") == " 7"
    """
    text = label.strip(" \t\r#>")
    marks = text[: len(text) - len(text.lstrip(_EMPHASIS))]
    if not marks:
        return rest
    if rest.lstrip().startswith(marks):
        return rest.lstrip().removeprefix(marks)
    return rest.rstrip().removesuffix(marks)


def clean(text: str) -> str | None:
    """Return an answer without its box and without marks around it, or None if it is empty.

    Marks are removed in pairs, because a single one may be part of the answer.
    """
    if _BOX in text:
        text = _box_content(text)
    text = text.strip()
    quote = _QUOTE.match(text)
    if quote is not None:
        text = text[quote.end() :]
    inner = _inside_marks(text)
    while inner is not None:
        text = inner
        inner = _inside_marks(text)
    if not 0 < len(text) <= MAX_CHARS or not text.strip(_EMPHASIS + "$"):
        return None
    return text


def _inside_marks(text: str) -> str | None:
    """Return what a pair of marks encloses, if it encloses the whole text; a full stop may follow.

    Example:
        _inside_marks("**7**.") == "7"
    """
    bare = text.removesuffix(".")
    for opening, closing in _PAIRS:
        inner = bare.removeprefix(opening).removesuffix(closing)
        is_enclosed = len(bare) == len(opening) + len(inner) + len(closing)
        if not is_enclosed or not inner or opening in inner or closing in inner:
            continue
        if opening in _EMPHASIS and inner != inner.strip():
            # Not Markdown: two cells of a board, or two factors.
            continue
        return inner.strip()
    return None


def _from_last_box(line: str, lines_below: Sequence[str]) -> str:
    """Return a line from its last box on, with lines below it if the box is not closed before.

    Args:
        line: The line.
        lines_below: The lines below it, last first.
    """
    text = line[line.rindex(_BOX) :]
    if text.count("{") <= text.count("}"):
        return text
    parts = [text]
    num_chars = len(text)
    for below in reversed(lines_below):
        if num_chars > MAX_CHARS:
            break
        parts.append(below)
        num_chars += len(below)
    return "\n".join(parts)


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
