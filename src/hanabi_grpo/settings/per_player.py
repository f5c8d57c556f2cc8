"""Settings that may differ from player to player: one number, or NAME=VALUE for each.

The field of such a setting holds a number, or its entries as text in a canonical form, so that it
can be stored and compared like any other setting.

Example:
    LEARNING_RATE=2e-5
    LEARNING_RATE=player_0=1e-5,player_1=3e-5
    LEARNING_RATE=player_0=1e-5,3e-5, where the others have 3e-5
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BeforeValidator

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.variables import typed
from hanabi_grpo.types import MAX_PLAYERS, player_names

_Number = TypeVar("_Number", int, float)

OTHERS = ""
"""Instead of a player's name: the entry for all players that are not named."""
FORM = "for all players, or for each as in {example}"
"""How `allowed` describes this form."""


def entries(value: float | str) -> dict[str, float]:
    """Return the numbers of a per-player setting by player; `OTHERS` for all that are not named.

    Raises:
        ValueError: The text is malformed.
    """
    if not isinstance(value, str):
        return {OTHERS: value}
    numbers: dict[str, float] = {}
    for entry in value.split(","):
        name, equals, number = entry.strip().rpartition("=")
        if equals and name not in player_names(MAX_PLAYERS):
            raise ValueError(f"{entry!r}: no player is called {name!r}")
        if name in numbers:
            raise ValueError(f"{entry!r}: a second value for {name or 'the others'}")
        numbers[name] = float(number)
    return numbers


def value_of(value: float | str, adapter: str, variable: str) -> float:
    """Return the number that holds for an adapter.

    Args:
        value: The setting's value.
        adapter: E.g. "player_0", or the shared one.
        variable: The setting's name, for the message.

    Raises:
        SettingsError: The adapter has no entry.
    """
    numbers = entries(value)
    if adapter in numbers:
        return numbers[adapter]
    if OTHERS not in numbers:
        raise SettingsError(
            f"{variable}={value}: adapter {adapter} has no value; add an entry for it, or a number "
            "without a player's name for all players that are not named."
        )
    return numbers[OTHERS]


def check_per_player(
    values: Mapping[str, float | str],
    names: Sequence[str],
    *,
    only: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Refuse entries that name no player, or that leave a player out.

    Args:
        values: Per-player settings, by variable.
        names: The run's adapters; a single one is shared by all players.
        only: The adapters that need a value, for variables that not all adapters need.

    Raises:
        SettingsError: An entry names no player, or an adapter that needs a value has none.
    """
    only = only or {}
    for variable, value in values.items():
        numbers = entries(value)
        named = [name for name in numbers if name != OTHERS]
        strangers = [name for name in named if name not in names]
        if strangers and len(names) == 1:
            raise SettingsError(
                f"{variable}={value} with HANABI_ADAPTERS=shared: the players share one adapter, "
                "which has one value; set a single number, or HANABI_ADAPTERS=per_player."
            )
        if strangers:
            raise SettingsError(
                f"{variable}={value}: {strangers[0]} is not a player of this game; allowed are "
                f"{', '.join(names)}."
            )
        for name in names:
            if name in only.get(variable, names):
                value_of(value, name, variable)
        if OTHERS in numbers and len(named) == len(names):
            raise SettingsError(
                f"{variable}={value}: {typed(numbers[OTHERS])} applies to no player, since every "
                "player is named; remove it."
            )


def per_player(number: Callable[[Any], _Number], is_right: Callable[[_Number], bool]) -> Any:
    """Return the type of a field that holds one number, or one for each player.

    Args:
        number: Converts a value to a number, e.g. `float`; raises a ValueError if it cannot.
        is_right: Tells whether a number may be set.
    """

    def checked(value: Any) -> _Number:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("not a number")
        parsed = number(value)
        if number(value) != float(value) or not math.isfinite(parsed) or not is_right(parsed):
            raise ValueError("not allowed")
        return parsed

    def read(value: Any) -> float | str:
        if not isinstance(value, str) or not ("=" in value or "," in value):
            return checked(value)
        words = []
        for name, given in entries(value).items():
            text = typed(checked(given))
            words.append(f"{name}={text}" if name != OTHERS else text)
        return ",".join(words)

    return BeforeValidator(read)


def _whole(value: Any) -> int:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no whole number")
    return int(number)


PerPlayer: TypeAlias = float | str
"""What such a field holds."""
Rate: TypeAlias = Annotated[PerPlayer, per_player(float, lambda rate: rate > 0)]
"""A number above 0, for all players or for each."""


def whole_numbers(is_right: Callable[[int], bool]) -> Any:
    """Return the annotation of a field that holds a whole number, or one for each player.

    Args:
        is_right: Tells whether a number may be set.
    """
    return per_player(_whole, is_right)
