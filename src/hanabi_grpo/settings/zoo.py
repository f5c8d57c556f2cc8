"""The zoo: trained teams that come with this package, to play with and to compare with.

`zoo:laptop` names one as a policy spec. A team is a folder with a checkpoint's adapters, the base
model that they belong to, and `zoo.json`: the settings that it plays with and what it scores.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.errors import SettingsError, did_you_mean
from hanabi_grpo.settings.shipped import ZOO, shipped_folder

PREFIX = "zoo:"
FACTS = "zoo.json"
"""Of a team: {"settings": {"HANABI_PRESET": …}, "made": …, "evaluations": {"sampled": …}}."""
_NAMED = re.compile(rf"(?:^|[=,\s]){PREFIX}(?P<name>[^:,\s]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooTeam:
    """A trained team."""

    name: str
    folder: Path
    """Of the adapters."""
    settings: Mapping[str, str]
    """By variable, what the team plays with; MODEL is its base model."""


def zoo_names() -> tuple[str, ...]:
    """Return the names of the teams that are here."""
    return tuple(sorted(path.parent.name for path in _zoo().glob(f"*/{FACTS}")))


def zoo_team(name: str) -> ZooTeam:
    """Return a team of the zoo.

    Raises:
        SettingsError: There is none of this name.
    """
    names = zoo_names()
    if name not in names:
        known = ", ".join(names) or "none: run in a checkout, or install the package"
        raise SettingsError(
            f"{PREFIX}{name}: the zoo has no such team; {did_you_mean(name, names)}there are "
            f"{known}."
        )
    folder = _zoo() / name
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    settings = {**facts["settings"], "MODEL": str(folder / "model")}
    return ZooTeam(name=name, folder=folder, settings=settings)


def zoo_settings(specs: Iterable[str]) -> Mapping[str, str]:
    """Return the settings that the zoo's teams among some policy specs play with; {} without any.

    Args:
        specs: Lineups or entries as they were typed, e.g. "zoo:laptop,iggi" or "a=zoo:laptop".

    Raises:
        SettingsError: There is no such team, or two teams play on different models or boards.
    """
    names = []
    for spec in specs:
        names += [match["name"] for match in _NAMED.finditer(spec)]
    teams = [zoo_team(name) for name in dict.fromkeys(names)]
    if not teams:
        return {}
    first, *others = teams
    for other in others:
        if other.settings != first.settings:
            raise SettingsError(
                f"{PREFIX}{first.name} and {PREFIX}{other.name}: their base models or boards "
                "differ, so they cannot play together; name one of them."
            )
    return first.settings


def use_zoo(specs: Iterable[str]) -> bool:
    """Let this process play with the settings of the zoo's teams among some policy specs.

    Args:
        specs: As in `zoo_settings`.

    Returns:
        Whether there is such a team. It needs a server of its own: the team has its own base model.

    Raises:
        SettingsError: As `zoo_settings`, or a variable is set to something else.
    """
    specs = list(specs)
    settings = zoo_settings(specs)
    for name, value in settings.items():
        given = os.environ.get(name, "")
        if given not in ("", value):
            team = next(spec for spec in specs if PREFIX in spec)
            raise SettingsError(
                f"{name}={given}: {team} plays with {name}={value}; unset {name} for this command."
            )
    os.environ.update(settings)
    return bool(settings)


def _zoo() -> Path:
    return Path(shipped_folder(ZOO))
