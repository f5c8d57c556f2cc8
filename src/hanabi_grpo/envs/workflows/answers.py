"""What a reply answers, when two answers are the same, and what a majority of them is worth."""

import re
from collections import Counter
from collections.abc import Sequence

from hanabi_grpo.envs.texts import think_parts

MAX_CHARS = 4000
"""No longer text is an answer."""
_DECORATION = " \t\r*_`#>"
_LABEL = frozenset({"the", "my", "final", "answer"})
_BOX = "\\boxed{"
_MARKUP = re.compile(r"<(?=[|\uff5c/!\w])|\[(?=/?[A-Z_]+\])")
"""Where a tag begins that a chat template or a tokenizer might take for its own."""
_MAX_DIGITS = 100
_NUMBER = re.compile(r"([+-]?)0*(\d*)(?:\.(\d*?)0*)?", re.ASCII)


def said(reply: str) -> str | None:
    """Return what a reply says beside its thoughts, None where a thought was cut off.

    Others read it as a part of their prompts, so nothing in it may be a special token: `<|im_end|>`
    becomes `< |im_end|>`."""
    _, parts, is_cut_off = think_parts(reply)
    text = "\n".join(part.strip() for part in parts if part.strip())
    return None if is_cut_off else _MARKUP.sub(r"\g<0> ", text)


def read_answer(text: str, style: str) -> str | None:
    r"""Return the answer that a text gives, None where it gives none; linear in its length.

    In the compact style it is what follows the last `=`, if there is one. In the full style it stands behind the last
    `Answer:` that begins a line, on that line or on all lines after it, or in the last `\boxed{}`.
    """
    if style == "compact":
        return text.rpartition("=")[2].strip()[:MAX_CHARS] or None
    below: list[str] = []
    for line in reversed(text.splitlines()):
        label, colon, rest = line.partition(":")
        words = label.strip(_DECORATION).lower().split() if len(label) < MAX_CHARS else []
        if colon and "answer" in words and _LABEL.issuperset(words):
            return _clean(rest) or _clean("\n".join(reversed(below)))
        if _BOX in line and (found := _clean(line[line.rindex(_BOX) :])):
            return found
        below.append(line)
    return None


def same(answer: str) -> str:
    """Return a text that is equal for equal answers: spaces, case, currency and the way to write a
    number fall out.

    Example:
        same("$1 200.50") == same("1,200.5") == "1200.5"
    """
    text = "".join(answer.split()).casefold()
    bare = text.rstrip(".").strip("$\u20ac%").replace(",", "")
    number = _NUMBER.fullmatch(bare) if len(bare) < _MAX_DIGITS else None
    if number is None or not any(map(str.isdigit, bare)):
        return text
    sign, whole, rest = number.groups()
    value = (whole or "0") + (f".{rest}" if rest else "")
    return f"-{value}" if sign == "-" and value != "0" else value


def majority(answers: Sequence[str | None], rights: Sequence[float]) -> float:
    """Return what the most frequent answer is worth, the mean over those that are tied, 0 where
    nobody answered.

    Drawing one of the tied answers has this expectation, and no seat decides more ties than
    another. `answers` are per seat, None without one, and `rights` 1.0 where it is right, else 0.0.
    """
    votes = Counter(same(answer) for answer in answers if answer is not None)
    worth = {
        same(answer): right
        for answer, right in zip(answers, rights, strict=True)
        if answer is not None
    }
    tied = [worth[one] for one, count in votes.items() if count == max(votes.values())]
    return sum(tied) / len(tied) if tied else 0.0


def _clean(text: str) -> str | None:
    if _BOX in text:
        start, depth = text.rindex(_BOX) + len(_BOX), 1
        for end in range(start, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                text = text[start:end]
                break
    text = text.strip().strip(_DECORATION + "$").strip()
    return text if 0 < len(text) <= MAX_CHARS else None
