"""Environments by name: those of this package, and those that installed packages register.

A package registers one by an entry point of the group `hanabi_grpo.environments`, whose name is the
environment's and whose value leads to the `Environment` object:

    [project.entry-points."hanabi_grpo.environments"]
    my_game = "my_package.my_game:MY_GAME"

So code runs only if somebody installed it. A name is never a path, since it may come from a dataset
row or a request.
"""

import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from hanabi_grpo.envs.base import Environment, Setup
from hanabi_grpo.errors import SettingsError, did_you_mean, shown

GROUP = "hanabi_grpo.environments"
"""Group of entry points that installed packages register environments in."""
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
}
"""Environments of this package by name, with the module and the name of each object."""
FAMILIES = {
    "openspiel": "hanabi_grpo.envs.openspiel.any_game:any_game",
    "gymnasium": "hanabi_grpo.envs.interop.gymnasium_text:gymnasium_game",
    "textarena": "hanabi_grpo.envs.interop.textarena_game:textarena_game",
    "openenv": "hanabi_grpo.envs.interop.openenv_client:openenv_game",
}
"""What stands before the colon of another library's game, and the function for the whole name.

The function returns the environment.
"""
REACHING_OUT = ("textarena", "openenv")
"""Families whose games reach outside the process: TextArena downloads word lists, OpenEnv's games
are played by servers."""
OTHERS = "openspiel:<game>, gymnasium:<id>, textarena:<id>, openenv:localhost:<port>"
_NAME = re.compile(
    r"(openspiel:[a-z0-9]|[a-z])[a-z0-9_-]{0,63}|(gymnasium|textarena):[A-Za-z0-9][\w.-]{0,50}"
    r"|openenv:(localhost|127\.0\.0\.1):[0-9]{1,5}",
    re.ASCII,
)
"""What may be looked up."""
_UNKNOWN = "?"
"""Name and version of a package that does not say them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which installed package an environment comes from.

    Two sides compare it before they play together.
    """

    env: str
    """Name of the environment."""
    distribution: str
    """Name of the package, e.g. "hanabi-grpo"."""
    version: str
    """Version of the package."""


def names() -> tuple[str, ...]:
    """Return the name of every environment, this package's first.

    Games of other libraries are not among them, see `FAMILIES`.
    """
    foreign = set(_entry_points()) - set(OWN)
    return (*OWN, *sorted(foreign))


def get(name: str) -> Environment[Any]:
    """Return the environment of this name.

    Raises:
        SettingsError: There is none, or two, or it cannot be loaded.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingsError(
            f"env={shown(name)}: an environment is named by a word of lower-case letters, digits, "
            f"'_' and '-', never by a path; known: {', '.join(names())}; of other libraries: "
            f"{OTHERS}."
        )
    return _load(name)


def reaches_out(name: str) -> bool:
    """Tell whether a game of this name reaches outside the process, see `access.GameAccess`."""
    family, colon, _ = name.partition(":")
    return bool(colon) and family in REACHING_OUT


def is_zero_sum(name: str) -> bool:
    """Tell whether players of an environment's first preset win what others lose.

    Raises:
        SettingsError: As `get`.
    """
    environment = get(name)
    first_preset = next(iter(environment.presets.values()))
    return environment.spec(first_preset).payoff == "zero_sum"


def setup(env: str, env_config: Mapping[str, Any]) -> Setup[Any]:
    """Return an environment with the config that a dataset row or a record holds.

    What a request of another program holds is read by `access.GameAccess.setup`.

    Raises:
        SettingsError: There is no such environment, or the config is not one of its own.
    """
    environment = get(env)
    chosen = Setup(environment, environment.Config.parse(env_config))
    # Refuses fields that contradict each other.
    _ = chosen.spec
    return chosen


def may_block(setup: Setup[Any]) -> bool:
    """Tell whether calls of a game may block, see `Environment.may_block`."""
    if any(tool.slow for tool in setup.tools):
        return True
    answer = setup.environment.may_block(setup.config)
    if answer is None:
        return setup.env not in OWN
    return answer


def origin(name: str) -> Origin:
    """Return which package an environment comes from.

    Raises:
        SettingsError: As `get`.
    """
    get(name)
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
            f"{', '.join(names())}, {OTHERS}. One of another package has to be installed here and "
            f"registered in the entry-point group {GROUP} (docs/environments.md)."
        )
    [entry] = entries
    return _load_entry(entry)


def _load_entry(entry: metadata.EntryPoint) -> Environment[Any]:
    """Return the environment that an entry point of another package leads to."""
    try:
        environment = entry.load()
    except Exception as error:  # whatever a stranger's module raises when it is imported
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
    """Return what stands at e.g. "package.module:NAME"."""
    module, _, attribute = address.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _entry_points() -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of installed packages by name; two packages may give the same."""
    entries: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=GROUP):
        entries.setdefault(entry.name, []).append(entry)
    return entries


def _owner(entry: metadata.EntryPoint) -> str:
    if entry.dist is None:
        return entry.value
    return f"{entry.dist.name} {entry.dist.version}"
