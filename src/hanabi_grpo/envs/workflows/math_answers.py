"""When two answers mean the same, by the package math-verify (the extra `math`)."""

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
"""Longer answers are compared as texts: nobody writes a number at such length."""
_SECONDS = 3
"""Longest time for reading one answer, and for comparing two."""
_COMMAND = re.compile(r"\\[A-Za-z]+")
"""A command of LaTeX."""
_WORD = re.compile(r"[^\W\d_]{2}")
"""Two letters in a row. math-verify reads a word as the product of its letters, for which the order
does not count."""
_OPERATION = re.compile(
    r"[+*!]|\\(?:times|cdot|int|sum|prod|binom|lim)(?![A-Za-z])|(?<=[\w)}\]])\s*-"
)
"""What has yet to be worked out. A question that is copied, "3 + 4", has the right value, too."""
_DIVISION = re.compile(r"/|\\(?:[dt]?frac|div|sqrt)(?![A-Za-z])")
"""The same where the solution is a whole number."""
_SCIENTIFIC = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]{1,2}", re.ASCII)
"""A number such as 1e-5, which math-verify reads as 1 times e minus 5."""
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*", re.ASCII)


def load_math_verify() -> str:
    """Return the name and version of the package.

    Raises:
        SettingsError: It is not installed.
    """
    try:
        importlib.import_module("math_verify")
    except ImportError as error:
        raise SettingsError(
            f"HANABI_VERIFY=math: needs {_PACKAGE} ({error}); on every machine of the run: uv pip "
            "install math-verify==0.9.0."
        ) from error
    # It warns, each time, that without seconds somebody else has to end it.
    for module in ("parser", "grader"):
        logging.getLogger(f"math_verify.{module}").setLevel(logging.CRITICAL)
    return f"{_PACKAGE} {metadata.version(_PACKAGE)}"


def means_the_same(solution: str, answer: str) -> bool:
    r"""Tell whether an answer has the value of the solution.

    What takes too long to read or to compare does not, nor does what has yet to be worked out.

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
    """Return a number in scientific notation in the usual one, any other text as it is.

    Example:
        _without_exponent("1e-5") == "0.00001"
    """
    number = text.strip()
    return format(Decimal(number), "f") if _SCIENTIFIC.fullmatch(number) else text


def _is_left_to_do(solution: str, answer: str) -> bool:
    """Tell whether an answer has an operation that its solution has not."""
    if _OPERATION.search(answer.strip().lstrip("+-")) and not _OPERATION.search(solution):
        return True
    return bool(_WHOLE_NUMBER.fullmatch(solution) and _DIVISION.search(answer))


def _read(text: str) -> Any:
    """Return what math-verify reads in a text: as LaTeX, else as a plain expression."""
    parse = importlib.import_module("math_verify").parse
    return parse(f"${text}$", parsing_timeout=_seconds()) or parse(text, parsing_timeout=_seconds())


def _seconds() -> int | None:
    """Return the limit; None where there can be none.

    math-verify keeps it by a signal, which only the main thread gets. Episodes are played there, in
    processes of their own (`Environment.may_block`), where a server ends what takes too long.
    """
    return _SECONDS if threading.current_thread() is threading.main_thread() else None
