"""MODEL: the base model of all players, or one for each as in player_0=A,player_1=B.

Players whose entries are equal share one base model; a team with one model is the common case.
Code that needs the model of a player calls `base_of`.

Example:
    MODEL=Qwen/Qwen3-4B
    MODEL=player_0=Qwen/Qwen3-4B,player_1=Qwen/Qwen3-0.6B
    MODEL=player_0=Qwen/Qwen3-4B,Qwen/Qwen3-0.6B, where the others have Qwen3-0.6B
"""

import re

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.per_player import OTHERS
from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, player_names

_NAMED = re.compile(r"(?:^|,)\s*(player_\w*)=")
"""An entry with the name of a player; the name of a model alone may hold commas and equal signs."""


def names_several(model: str) -> bool:
    """Tell whether a MODEL has an entry for a player."""
    return _NAMED.search(model) is not None


def model_entries(model: str) -> dict[str, str]:
    """Return the base models of a MODEL by player; `OTHERS` for all that are not named.

    Raises:
        ValueError: An entry names no player or no model, or a player has two entries.
    """
    if not names_several(model):
        return {OTHERS: model}
    models: dict[str, str] = {}
    for entry in model.split(","):
        name, equals, base = entry.strip().partition("=")
        if not equals:
            name, base = OTHERS, name
        elif name not in player_names(MAX_PLAYERS):
            raise ValueError(f"{entry.strip()!r}: no player is called {name!r}")
        if name in models:
            raise ValueError(f"{entry.strip()!r}: a second model for {name or 'the others'}")
        if not base:
            raise ValueError(f"{entry.strip()!r}: no model")
        models[name] = base
    return models


def short_names(model: str) -> str:
    """Return the last part of each model's name, for titles: "tiny-model" or "A, B".

    Args:
        model: MODEL as a run recorded it; an invalid value is shown unchanged.
    """
    try:
        models = list(model_entries(model).values())
    except ValueError:
        models = [model]
    names = [name.rstrip("/").rpartition("/")[2] for name in models]
    return ", ".join(dict.fromkeys(names))


def base_of(settings: Settings, adapter: str) -> str:
    """Return the base model of an adapter, as MODEL names it.

    Args:
        settings: The settings of a run or a server.
        adapter: E.g. "player_1", or the shared one.

    Raises:
        SettingsError: MODEL names players that these settings do not have.
    """
    models = _checked_entries(settings)
    return models.get(adapter) or models.get(OTHERS) or next(iter(models.values()))


def base_models(settings: Settings) -> tuple[str, ...]:
    """Return the different base models of a team, player_0's first.

    Raises:
        SettingsError: MODEL names players that these settings do not have.
    """
    bases = [base_of(settings, name) for name in player_names(settings.players)]
    return tuple(dict.fromkeys(bases))


def bases_by_player(settings: Settings) -> dict[str, str]:
    """Return the base model of each player; empty if all players have the same one.

    Raises:
        SettingsError: MODEL names players that these settings do not have.
    """
    if len(base_models(settings)) == 1:
        return {}
    return {name: base_of(settings, name) for name in player_names(settings.players)}


def _checked_entries(settings: Settings) -> dict[str, str]:
    try:
        models = model_entries(settings.model)
    except ValueError as error:
        raise SettingsError(
            f"MODEL={settings.model}: {error}; give one model, or one for each player as in "
            "player_0=A,player_1=B."
        ) from error
    names = player_names(settings.players)
    strangers = [name for name in models if name not in (*names, OTHERS)]
    if strangers:
        raise SettingsError(
            f"MODEL={settings.model}: {strangers[0]} is not a player of this game; allowed are "
            f"{', '.join(names)} (HANABI_PLAYERS={settings.players})."
        )
    without = [name for name in names if name not in models]
    if without and OTHERS not in models:
        raise SettingsError(
            f"MODEL={settings.model}: {without[0]} has no model; add an entry for it, or a model "
            "without a player's name for all players that are not named."
        )
    if not without and OTHERS in models:
        raise SettingsError(
            f"MODEL={settings.model}: {models[OTHERS]} applies to no player, since every player "
            "is named; remove it."
        )
    if len(set(models.values())) > 1 and settings.adapters == SHARED_ADAPTER:
        raise SettingsError(
            f"MODEL={settings.model} with HANABI_ADAPTERS=shared: the players share one adapter, "
            "which belongs to one base model; set one model, or HANABI_ADAPTERS=per_player."
        )
    return models
