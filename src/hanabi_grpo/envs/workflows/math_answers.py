"""Comparing two answers by value, with the package math-verify (the extra `math`)."""

import importlib
import logging
import re
import threading
from decimal import Decimal
from importlib import metadata
from typing import Any

from hanabi_grpo.errors import SettingsError

_PACKAGE = "math-verify"
_MAX_CHARS = 400
"""Longer answers are compared as texts, because no number is that long."""
_SECONDS = 3
"""Time limit for parsing one answer, and for comparing two."""
_COMMAND = re.compile(r"\\[A-Za-z]+")
"""A LaTeX command."""
_WORD = re.compile(r"[^\W\d_]{2}")
"""Two letters in a row. math-verify reads a word as the product of its letters, so their order
would not matter."""
_OPERATION = re.compile(
    r"[+*!]|\\(?:times|cdot|int|sum|prod|binom|lim)(?![A-Za-z])|(?<=[\w)}\]])\s*-"
)
"""An operation not yet carried out: a copy of the question, "3 + 4", has the right value, too."""
_DIVISION = re.compile(r"/|\\(?:[dt]?frac|div|sqrt)(?![A-Za-z])")
"""The same, if the solution is a whole number."""
_SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u22c5": "*", "\u00f7": "/", "\u2212": "-"})
"""Signs of operations that LaTeX and plain text write in other ways."""
_UNIT = re.compile(
    r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\^\{?\\circ\}?|\\?[$%\u20ac\u00b0]|\\[,;! ]|"
    r"(?<=[\d.])\s*[A-Za-z]+(?:\^?\{?[23]\}?)?$",
    re.ASCII,
)
"""What may stand beside a number: a unit, a currency, a percent or degree sign, LaTeX's spaces."""
_DIGITS = r"(?:\d[\d,\s]*(?:\.\d*)?|\.\d+)"
_PLAIN_NUMBER = re.compile(
    rf"(?:[A-Za-z]\w?\s*=)?\s*[-+]?\s*(?:{_DIGITS}(?:[eE][-+]?\d+)?"
    rf"|{_DIGITS}\s*(?:\*|\\times|\\cdot)\s*10\s*\^\s*\{{?\s*-?\d+\s*\}}?"
    rf"|(?:\d+\s+)?\d+\s*/\s*\d+"
    r"|\d*\s*\\[dt]?frac\s*(?:\{\s*-?\d+\s*\}|\d)\s*(?:\{\s*-?\d+\s*\}|\d))\s*",
    re.ASCII,
)
"""A number as it is written when nothing is left to compute: 1,200.5, 3/4, \\frac{3}{4}, 3e8."""
_SCIENTIFIC = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]{1,2}", re.ASCII)
"""A number such as 1e-5, which math-verify reads as 1 times e minus 5."""
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*", re.ASCII)


def load_math_verify() -> str:
    """Return the name and version of the package.

    Raises:
        SettingsError: The package is not installed.
    """
    try:
        importlib.import_module("math_verify")
    except ImportError as error:
        raise SettingsError(
            f"HANABI_VERIFY=math: needs {_PACKAGE} ({error}). Install it on every machine of the "
            "run: uv pip install math-verify==0.9.0."
        ) from error
    # It warns on every call without a time limit that it may not terminate.
    for module in ("parser", "grader"):
        logging.getLogger(f"math_verify.{module}").setLevel(logging.CRITICAL)
    return f"{_PACKAGE} {metadata.version(_PACKAGE)}"


def means_the_same(solution: str, answer: str) -> bool:
    r"""Return whether an answer has the value of the solution.

    Returns False if parsing or comparing takes too long, or if the answer is an expression that has
    yet to be evaluated.

    Example:
        means_the_same(r"\frac{1}{2}", "0.5")
    """
    if max(len(solution), len(answer)) > _MAX_CHARS or _WORD.search(_COMMAND.sub(" ", solution)):
        return False
    solution = _without_exponent(solution)
    answer = _without_exponent(answer)
    if _is_left_to_do(solution, answer):
        return False
    verify = importlib.import_module("math_verify").verify
    wanted = _read(solution)
    given = _read(answer)
    if not wanted or not given:
        return False
    return bool(verify(wanted, given, timeout_seconds=_seconds()))


def _without_exponent(text: str) -> str:
    """Convert a number from scientific to decimal notation; return other texts unchanged.

    Example:
        _without_exponent("1e-5") == "0.00001"
    """
    number = text.strip()
    return format(Decimal(number), "f") if _SCIENTIFIC.fullmatch(number) else text


def _is_left_to_do(solution: str, answer: str) -> bool:
    """Return whether an answer has an operation that the solution does not have.

    If the solution is a number, the answer has to be one, too: the gcd of 21 and 4 has the value 1.
    """
    solution = solution.translate(_SIGNS)
    answer = answer.translate(_SIGNS)
    if _is_plain_number(solution):
        is_quotient = _WHOLE_NUMBER.fullmatch(solution) and _DIVISION.search(answer)
        return bool(is_quotient) or not _is_plain_number(answer)
    return bool(_OPERATION.search(answer.strip().lstrip("+-")) and not _OPERATION.search(solution))


def _is_plain_number(text: str) -> bool:
    return _PLAIN_NUMBER.fullmatch(_UNIT.sub("", text.strip())) is not None


def _read(text: str) -> Any:
    """Return the result of math-verify's parser for a text, as LaTeX or as a plain expression."""
    parse = importlib.import_module("math_verify").parse
    return parse(f"${text}$", parsing_timeout=_seconds()) or parse(text, parsing_timeout=_seconds())


def _seconds() -> int | None:
    """Return the time limit, or None if there can be none.

    math-verify enforces it with a signal, which only works in the main thread. The server plays
    episodes in the main thread of separate processes (`Environment.may_block`), and ends what takes
    too long.
    """
    return _SECONDS if threading.current_thread() is threading.main_thread() else None
