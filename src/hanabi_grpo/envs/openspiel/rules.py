"""OpenSpiel games by the text that loads them, checked before the library sees that text.

OpenSpiel terminates the whole process on some invalid parameters, so it must never receive an
unchecked text.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyspiel

from hanabi_grpo.errors import SettingsError, did_you_mean, shown
from hanabi_grpo.types import MAX_PLAYERS


@functools.lru_cache(maxsize=64)
def load(name: str) -> Any:
    """Return an OpenSpiel game, e.g. "leduc_poker" or "connect_four(rows=4,columns=5,x_in_row=3)".

    The text comes from this package's own code or from `check_name`.
    """
    return pyspiel.load_game(name)


class Facts(NamedTuple):
    """Constant properties of a game, so that the library is queried only once."""

    game: Any
    """OpenSpiel's game object."""
    is_open: bool
    """Whether every player sees everything."""
    is_dealt: bool
    """Whether the game has chance events."""
    num_players: int
    nothing: Sequence[Mapping[str, float]]
    """Rewards of an action that does not end the game; empty if such actions may pay."""
    lowest: float
    """The minimum return."""
    highest: float
    """The maximum return."""
    utility: Any
    """How the players' returns are related: a `pyspiel.GameType.Utility`."""


@functools.cache
def facts(name: str) -> Facts:
    """Return the facts about a game."""
    game = load(name)
    kind = game.get_type()
    num_players = game.num_players()
    pays_at_the_end = kind.reward_model == pyspiel.GameType.RewardModel.TERMINAL
    return Facts(
        game=game,
        is_open=kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION,
        is_dealt=kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC,
        num_players=num_players,
        nothing=({},) * num_players if pays_at_the_end else (),
        lowest=game.min_utility(),
        highest=game.max_utility(),
        utility=kind.utility,
    )


@functools.cache
def playable_names() -> tuple[str, ...]:
    """Return the names of games that can be played here with their default parameters."""
    names = []
    for kind in pyspiel.registered_games():
        if _obstacle(kind) is None:
            names.append(kind.short_name)
    return tuple(sorted(names))


def check_name(name: object) -> str:
    """Return the name of a game if it can be played here with default parameters.

    Raises:
        SettingsError: OpenSpiel has no such game, or it cannot be played here.
    """
    kinds = {kind.short_name: kind for kind in pyspiel.registered_games()}
    playable = ", ".join(playable_names())
    if not isinstance(name, str) or name not in kinds:
        hint = did_you_mean(name, playable_names()) if isinstance(name, str) else ""
        raise SettingsError(
            f"game={shown(name)}: OpenSpiel has no such game; {hint}{len(playable_names())} can be "
            f"played here: {playable}."
        )
    obstacle = _obstacle(kinds[name])
    if obstacle is not None:
        raise SettingsError(f"game={name!r}: {obstacle}; choose one of: {playable}.")
    return name


def _obstacle(kind: Any) -> str | None:
    """Return why a game cannot be played here, or None if it can."""
    is_open = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        return "its players do not take turns"
    if not kind.default_loadable:
        return "it needs parameters"
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        return "it samples its own chance events, so a seed does not fix the start"
    if not is_open and not kind.provides_information_state_string:
        return "it does not describe what a player knows (information_state_string)"
    if not 1 <= kind.min_num_players <= MAX_PLAYERS:
        return f"it needs {kind.min_num_players} players; the maximum is {MAX_PLAYERS}"
    return None
