"""Texts from files and from the network, made safe to show: every character is visible.

Terminals interpret control characters, and characters that change the direction of writing can
deceive a reader. Code that writes to a terminal (`commands.console`), to a log (`logs`) or to a
page (`report.page`) therefore sends every text through `visible`.
"""

import unicodedata

_FIRST_PRINTABLE = 0x20
"""Control characters below it have pictures in Unicode, from `_CONTROL_PICTURES` on."""
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F
_INVISIBLE_CATEGORIES = ("Cf", "Zl", "Zp")
"""Unicode's format characters, and its separators of lines and of paragraphs."""
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"
"""Letters and marks that are invisible."""


def visible(text: str) -> str:
    r"""Return a text in which every character is visible; line breaks and tabs stay.

    Control characters, which a terminal would interpret, become Unicode's pictures of them.
    Characters that change the direction of writing or have no width are named, e.g. `[U+202E]`, and
    a lone surrogate becomes U+FFFD.

    Example:
        visible("\x1b[2J\u202e") == "␛[2J[U+202E]"
    """
    text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_SHOWN)


def visible_line(text: str) -> str:
    r"""Return `visible` of a single line, e.g. a name: line breaks and tabs are shown too.

    Example:
        visible_line("a\nb") == "a␊b"
    """
    return visible(text).translate(_LINE)


def visible_json(text: str) -> str:
    r"""Return the same JSON document with every invisible character escaped.

    Example:
        visible_json('["\u202e"]') == r'["\u202e"]'
    """
    if visible(text) == text:
        return text
    escaped = []
    for character in text:
        if visible(character) == character:
            escaped.append(character)
            continue
        # JSON escapes UTF-16 units, and a character beyond 16 bits has two of them.
        units = character.encode("utf-16-be", "surrogatepass").hex()
        for start in range(0, len(units), 4):
            escaped.append(f"\\u{units[start : start + 4]}")
    return "".join(escaped)


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold, with "?" for each lone surrogate.

    A `str` can hold a lone surrogate, but a record with one could be neither sent nor written.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def is_visible(text: str) -> bool:
    """Tell whether a text is a single line and every character of it is visible."""
    return visible_line(text) == text


class _Shown(dict[int, str]):
    """The replacement of each character, by its code; filled on demand."""

    def __missing__(self, code: int) -> str:
        shown = _show(chr(code))
        self[code] = shown
        return shown


_SHOWN = _Shown()
_LINE = str.maketrans(
    {"\n": "\N{SYMBOL FOR LINE FEED}", "\t": "\N{SYMBOL FOR HORIZONTAL TABULATION}"}
)


def _show(character: str) -> str:
    """Return the replacement of a character."""
    if character in "\n\t":
        return character
    code = ord(character)
    category = unicodedata.category(character)
    if category == "Cc":
        if code < _FIRST_PRINTABLE:
            return chr(_CONTROL_PICTURES + code)
        if code == _DELETE:
            return "\N{SYMBOL FOR DELETE}"
        return f"[U+{code:04X}]"
    if category == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    if category in _INVISIBLE_CATEGORIES or character in _FILLERS:
        return f"[U+{code:04X}]"
    return character
