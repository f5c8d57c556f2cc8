"""Checks of arguments; their messages name the argument and not an option of a command."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.evaluation.evaluate import check_suite


def check_count(where: str, name: str, value: object, *, least: int) -> None:
    """Check an argument that counts something.

    Args:
        where: Name of the function, for messages.
        name: Name of the argument.
        value: Its value.
        least: The lowest value that is allowed.

    Raises:
        SettingsError: It is not a whole number, or less.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingsError(f"{where}({name}={shown(value)}): give a whole number.")
    if int(value) < least:
        raise SettingsError(f"{where}({name}={value}): give at least {least}.")


def check_text(where: str, name: str, value: object, example: str) -> None:
    """Check an argument that is a text.

    Args:
        where: Name of the function, for messages.
        name: Name of the argument.
        value: Its value.
        example: What is allowed, as the end of a sentence.

    Raises:
        SettingsError: It is not a text.
    """
    if not isinstance(value, str):
        raise SettingsError(f"{where}({name}={shown(value)}): give {example}.")


def check_temperature(where: str, temperature: object) -> None:
    """Check a sampling temperature; None means that of the settings.

    Raises:
        SettingsError: It is not a finite number, at least 0.
    """
    if temperature is None:
        return
    is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not is_number or not 0 <= float(temperature) < float("inf"):  # type: ignore[arg-type]
        raise SettingsError(
            f"{where}(temperature={shown(temperature)}): must be a number, 0 (greedy) or more."
        )


def check_held_out(where: str, suite: str) -> None:
    """Check the suite of an evaluation.

    Raises:
        SettingsError: It is not a text, training uses the suite, or it is that of all starts.
    """
    check_text(where, "suite", suite, "the name of a held-out suite, eval or test")
    remedy = "give all_starts=True to play all of them"
    check_suite(suite, f"{where}(suite={suite!r})", for_all_starts=remedy)


def lineup_list(where: str, lineups: Any) -> list[str]:
    """Return one or more lineups as a list.

    Args:
        where: Name of the function, for messages.
        lineups: A lineup, or several.

    Raises:
        SettingsError: There is none, or one of them is not a text.
    """
    if isinstance(lineups, str):
        return [lineups]
    allowed = "give a lineup, e.g. 'iggi,random', or a list of lineups, e.g. ['iggi', 'hint-bot']"
    if not isinstance(lineups, Iterable):
        raise SettingsError(f"{where}(lineups={shown(lineups)}): {allowed}.")
    listed = list(lineups)
    if not listed or not all(isinstance(lineup, str) for lineup in listed):
        raise SettingsError(f"{where}(lineups={shown(listed)}): {allowed}.")
    return listed
