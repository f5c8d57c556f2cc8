"""Environments by name: those of this package, and those that installed packages register.

A package registers an environment with an entry point in the group `hanabi_grpo.environments`. Its
name is the name of the environment, and its value points to the `Environment` object:

    [project.entry-points."hanabi_grpo.environments"]
    my_game = "my_package.my_game:MY_GAME"

Thus only installed code can run. A name is never a path, because it may come from a dataset row or
a request.
"""

import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from hanabi_grpo.envs.base import Environment, Setup
from hanabi_grpo.envs.interop.foreign import Foreign
from hanabi_grpo.errors import SettingsError, did_you_mean, shown

GROUP = "hanabi_grpo.environments"
"""Entry-point group in which installed packages register environments."""
OWN_DISTRIBUTION = "hanabi-grpo"
OWN = {
    "hanabi": "hanabi_grpo.envs.hanabi.environment:HANABI",
    "tic_tac_toe": "hanabi_grpo.envs.openspiel.boards:TIC_TAC_TOE",
    "connect_four": "hanabi_grpo.envs.openspiel.boards:CONNECT_FOUR",
    "kuhn_poker": "hanabi_grpo.envs.openspiel.poker:KUHN_POKER",
    "leduc_poker": "hanabi_grpo.envs.openspiel.poker:LEDUC_POKER",
    "frozen_lake": "hanabi_grpo.envs.grid.frozen_lake:FROZEN_LAKE",
    "sokoban": "hanabi_grpo.envs.grid.sokoban:SOKOBAN",
    "vote": "hanabi_grpo.envs.workflows.environment:VOTE",
    "debate": "hanabi_grpo.envs.workflows.environment:DEBATE",
    "summary": "hanabi_grpo.envs.workflows.environment:SUMMARY",
    "pioneer_observer": "hanabi_grpo.envs.workflows.environment:PIONEER_OBSERVER",
    "revise": "hanabi_grpo.envs.workflows.environment:REVISE",
    "split_sum": "hanabi_grpo.envs.parts.split_sum:SPLIT_SUM",
    "hat_line": "hanabi_grpo.envs.parts.hat_line:HAT_LINE",
    "levers": "hanabi_grpo.envs.levers:LEVERS_GAME",
}
"""Environments of this package by name, with the module and object name of each."""
FAMILIES = {
    "openspiel": "hanabi_grpo.envs.openspiel.any_game:any_game",
    "gymnasium": "hanabi_grpo.envs.interop.gymnasium_text:gymnasium_game",
    "textarena": "hanabi_grpo.envs.interop.textarena_game:textarena_game",
    "openenv": "hanabi_grpo.envs.interop.openenv_client:openenv_game",
}
"""By prefix before the colon: the function that makes the environment of another library's game.

The function takes the whole name and returns the environment.
"""
REACHING_OUT = ("textarena", "openenv")
"""Families whose games reach outside the process: TextArena downloads word lists, and servers play
OpenEnv's games."""
OTHERS = "openspiel:<game>, gymnasium:<id>, textarena:<id>, openenv:localhost:<port>"
_NAME = re.compile(
    r"(openspiel:[a-z0-9]|[a-z])[a-z0-9_-]{0,63}|(gymnasium|textarena):[A-Za-z0-9][\w.-]{0,50}"
    r"|openenv:(localhost|127\.0\.0\.1):[0-9]{1,5}",
    re.ASCII,
)
"""Names that may be looked up."""
_UNKNOWN = "?"
"""Name and version of a package without metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which installed package an environment comes from.

    Server and trainer compare it before they work together.
    """

    env: str
    """Name of the environment."""
    distribution: str
    """Name of the package, e.g. "hanabi-grpo"."""
    version: str
    """Version of the package."""


def names() -> tuple[str, ...]:
    """Return the name of every environment, this package's first.

    Games of other libraries are not included; see `FAMILIES`.
    """
    foreign = set(_entry_points()) - set(OWN)
    return (*OWN, *sorted(foreign))


def get(name: str) -> Environment[Any]:
    """Return the environment with this name.

    Raises:
        SettingsError: No environment has the name, two have it, or it cannot be loaded.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingsError(
            f"env={shown(name)}: an environment name consists of lower-case letters, digits, '_' "
            f"and '-', and is never a path; known: {', '.join(names())}; from other libraries: "
            f"{OTHERS}."
        )
    return _load(name)


def reaches_out(name: str) -> bool:
    """Return whether this game reaches outside the process; see `access.GameAccess`."""
    family, colon, _ = name.partition(":")
    return bool(colon) and family in REACHING_OUT


def is_zero_sum(name: str) -> bool:
    """Return whether an environment's first preset is a zero-sum game.

    Raises:
        SettingsError: See `get`.
    """
    environment = get(name)
    first_preset = next(iter(environment.presets.values()))
    return environment.spec(first_preset).payoff == "zero_sum"


def setup(env: str, env_config: Mapping[str, Any]) -> Setup[Any]:
    """Return an environment with the config from a dataset row or a record.

    For requests from other programs, use `access.GameAccess.setup`.

    Raises:
        SettingsError: The environment does not exist, or the config is not valid for it.
    """
    environment = get(env)
    chosen = Setup(environment, environment.parse_config(env_config))
    # Raises an error for fields that contradict each other.
    _ = chosen.spec
    return chosen


def may_block(setup: Setup[Any]) -> bool:
    """Return whether calls to a game may block; see `Environment.may_block`."""
    if any(tool.slow for tool in setup.tools):
        return True
    answer = setup.environment.may_block(setup.config)
    if answer is None:
        return setup.env not in OWN
    return answer


def origin(name: str) -> Origin:
    """Return which package an environment comes from.

    For a game of another library, that is the package that contains the game, if it is installed
    here; otherwise, and for OpenSpiel's games, it is this package.

    Raises:
        SettingsError: See `get`.
    """
    environment = get(name)
    if isinstance(environment, Foreign) and environment.package is not None:
        package, version = environment.package
        return Origin(env=name, distribution=package, version=version)
    is_of_a_library = ":" in name
    if name in OWN or is_of_a_library:
        return Origin(
            env=name, distribution=OWN_DISTRIBUTION, version=metadata.version(OWN_DISTRIBUTION)
        )
    [entry] = _entry_points()[name]
    if entry.dist is None:
        return Origin(env=name, distribution=_UNKNOWN, version=_UNKNOWN)
    return Origin(env=name, distribution=entry.dist.name, version=entry.dist.version)


@functools.cache
def _load(name: str) -> Environment[Any]:
    family, colon, _ = name.partition(":")
    if colon and family in FAMILIES:
        make_environment = _import(FAMILIES[family])
        return make_environment(name)
    entries = _entry_points().get(name, [])
    owners = [OWN_DISTRIBUTION] if name in OWN else []
    owners += sorted(map(_owner, entries))
    if len(owners) > 1:
        raise SettingsError(
            f"env={name!r} is registered by {' and '.join(owners)}: uninstall all but one."
        )
    if name in OWN:
        return _import(OWN[name])
    if not entries:
        raise SettingsError(
            f"env={name!r}: no such environment; {did_you_mean(name, names())}known: "
            f"{', '.join(names())}, {OTHERS}. An environment from another package must be "
            f"installed here and registered in the entry-point group {GROUP} "
            "(docs/environments.md)."
        )
    [entry] = entries
    return _load_entry(entry)


def _load_entry(entry: metadata.EntryPoint) -> Environment[Any]:
    """Return the environment that another package's entry point refers to."""
    try:
        environment = entry.load()
    except Exception as error:  # third-party code may raise anything on import
        raise SettingsError(
            f"env={entry.name!r}: {_owner(entry)} registers {entry.value}, which cannot be loaded: "
            f"{type(error).__name__}: {error}."
        ) from error
    name = getattr(environment, "name", None)
    if name != entry.name:
        raise SettingsError(
            f"env={entry.name!r}: {_owner(entry)} registers {entry.value}, whose name is "
            f"{shown(name)}; the entry point and the environment need the same name."
        )
    return environment


def _import(address: str) -> Any:
    """Return the object at e.g. "package.module:NAME"."""
    module, _, attribute = address.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _entry_points() -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of installed packages by name; names may collide."""
    entries: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    return entries


def _owner(entry: metadata.EntryPoint) -> str:
    if entry.dist is None:
        return entry.value
    return f"{entry.dist.name} {entry.dist.version}"
