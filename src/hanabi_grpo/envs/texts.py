"""Replies as people read them: thought and answer apart, and no character that does more than be
seen.
"""

import re
import unicodedata
from collections.abc import Mapping

_THINK_TAG = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)


def split_reply(reply: str) -> tuple[str, str]:
    """Return what a reply thinks and what it says, both stripped."""
    thoughts, said, _ = think_parts(reply)
    return _joined(thoughts), _joined(said)


def think_parts(reply: str) -> tuple[list[str], list[str], bool]:
    """Return the pieces of a reply inside think blocks, those outside, and whether the last block
    is open.

    A closing tag without an opening one ends a thought that the prompt opened; a thought that was
    cut off has no closing tag."""
    thoughts: list[str] = []
    said: list[str] = []
    start, thinking = 0, False
    for tag in _THINK_TAG.finditer(reply):
        text = reply[start : tag.start()]
        if tag.group(1) and not thinking:
            thoughts += [*said, text]
            said = []
        else:
            (thoughts if thinking else said).append(text)
        start, thinking = tag.end(), not tag.group(1)
    (thoughts if thinking else said).append(reply[start:])
    return thoughts, said, thinking


def visible(text: str) -> str:
    """Return a text in which every character shows itself.

    Control characters (a terminal obeys them) become the pictures that Unicode has for them,
    characters that turn the direction of writing or have no width are named, e.g. `[U+202E]`, and a
    lone surrogate becomes U+FFFD."""
    text = text.replace("\r\n", "\n")
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def earned(rewards: Mapping[str, float]) -> str:
    """Return reward parts, e.g. "score +1, illegal -0.5"."""
    return ", ".join(f"{part} {signed(value)}" for part, value in rewards.items())


def signed(value: float) -> str:
    """Return a number with its sign and without needless zeros."""
    return f"{value:+.2f}".rstrip("0").rstrip(".")


def _shown(character: str) -> str:
    if character in "\n\t":
        return character
    category = unicodedata.category(character)
    if category == "Cc":
        code = ord(character)
        return (
            chr(0x2400 + code)
            if code < 0x20
            else "\N{SYMBOL FOR DELETE}"
            if code == 0x7F
            else f"[U+{code:04X}]"
        )
    if category == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return f"[U+{ord(character):04X}]" if category in ("Cf", "Zl", "Zp") else character


def _joined(parts: list[str]) -> str:
    return "\n".join(stripped for part in parts if (stripped := part.strip()))
