"""Environments by name: those of this package, and those that installed packages register.

A package registers one by an entry point of the group `hanabi_grpo.environments`, whose name is the
environment's and whose value leads to the `Environment` object:

    [project.entry-points."hanabi_grpo.environments"]
    my_game = "my_package.my_game:MY_GAME"

So code runs only if somebody installed it. A name is never a path, since it may come from a dataset
row or a request."""

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
}
FAMILIES = {
    "openspiel": "hanabi_grpo.envs.openspiel.any_game:any_game",
    "gymnasium": "hanabi_grpo.envs.interop.gymnasium_text:gymnasium_game",
    "textarena": "hanabi_grpo.envs.interop.textarena_game:textarena_game",
    "openenv": "hanabi_grpo.envs.interop.openenv_client:openenv_game",
}
"""What stands before the colon of another library's game, and the function that makes it an
environment.
"""
OTHERS = "openspiel:<game>, gymnasium:<id>, textarena:<id>, openenv:localhost:<port>"
_NAME = re.compile(
    r"(openspiel:[a-z0-9]|[a-z])[a-z0-9_-]{0,63}|(gymnasium|textarena):[A-Za-z0-9][\w.-]{0,50}"
    r"|openenv:(localhost|127\.0\.0\.1):[0-9]{1,5}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which installed package an environment comes from; two sides compare it before they play
    together.
    """

    env: str
    distribution: str
    version: str


def names() -> tuple[str, ...]:
    """Return the name of every environment, this package's first; other libraries' are in
    `FAMILIES`.
    """
    return (*OWN, *sorted(set(_entry_points()) - set(OWN)))


def get(name: str) -> Environment[Any]:
    """Return the environment of this name; `SettingsError` where there is none, or two, or it
    cannot be loaded.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingsError(
            f"env={shown(name)}: an environment is named by a word of lower-case letters, digits, "
            "'_' and '-', never "
            f"by a path; known: {', '.join(names())}; of other libraries: {OTHERS}."
        )
    return _load(name)


def is_zero_sum(name: str) -> bool:
    """Tell whether players of an environment's first preset win what others lose; raises as
    `get`.
    """
    environment = get(name)
    return environment.spec(next(iter(environment.presets.values()))).payoff == "zero_sum"


def setup(env: str, env_config: Mapping[str, Any]) -> Setup[Any]:
    """Return an environment with the config that a dataset row, a request or a record holds; raises
    `SettingsError`.
    """
    environment = get(env)
    found = Setup(environment, environment.Config.parse(env_config))
    _ = found.spec  # refuses fields that contradict each other
    return found


def origin(name: str) -> Origin:
    """Return which package an environment comes from; raises as `get`."""
    get(name)
    if name in OWN or ":" in name:
        return Origin(
            env=name, distribution=OWN_DISTRIBUTION, version=metadata.version(OWN_DISTRIBUTION)
        )
    [entry] = _entry_points()[name]
    found = entry.dist
    return Origin(
        env=name, distribution=found.name if found else "?", version=found.version if found else "?"
    )


@functools.cache
def _load(name: str) -> Environment[Any]:
    if (family := name.partition(":")[0]) in FAMILIES and ":" in name:
        module, _, function = FAMILIES[family].partition(":")
        return getattr(importlib.import_module(module), function)(name)
    entries = _entry_points().get(name, [])
    if (name in OWN) + len(entries) > 1:
        owners = [*([OWN_DISTRIBUTION] if name in OWN else []), *sorted(map(_owner, entries))]
        raise SettingsError(
            f"env={name!r} is registered by {' and '.join(owners)}: uninstall all but one."
        )
    if name in OWN:
        module, _, attribute = OWN[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if not entries:
        raise SettingsError(
            f"env={name!r}: no such environment; {did_you_mean(name, names())}known: "
            f"{', '.join(names())}, "
            f"{OTHERS}. One of another package has to be installed here and registered in the "
            "entry-point group "
            f"{GROUP} (docs/environments.md)."
        )
    [entry] = entries
    try:
        environment = entry.load()
    except Exception as error:  # whatever a stranger's module raises when it is imported
        raise SettingsError(
            f"env={name!r}: {_owner(entry)} registers {entry.value}, which cannot be loaded: "
            f"{type(error).__name__}: {error}."
        ) from error
    if (found := getattr(environment, "name", None)) != name:
        raise SettingsError(
            f"env={name!r}: {_owner(entry)} registers {entry.value}, whose name is "
            f"{shown(found)}; the entry point and "
            "the environment need the same name."
        )
    return environment


def _entry_points() -> dict[str, list[metadata.EntryPoint]]:
    found: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


def _owner(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
