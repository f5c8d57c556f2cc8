"""The zoo: trained teams that come with this package, to play with and to compare with.

The policy spec `zoo:laptop` names one. A team is a folder with a checkpoint's adapters, their base
model, and `zoo.json`: the settings that it plays with and its scores.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hanabi_grpo.errors import SettingsError, did_you_mean
from hanabi_grpo.settings.shipped import ZOO, shipped_folder

PREFIX = "zoo:"
FACTS = "zoo.json"
"""File of a team: {"settings": {"HANABI_PRESET": …}, "made": …, "evaluations": {"sampled": …}}."""
_BOOLEAN = TypeAdapter(bool)
_NAMED = re.compile(rf"(?:^|[=,\s]){PREFIX}(?P<name>[^:,\s]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooTeam:
    """A trained team."""

    name: str
    folder: Path
    """Folder of the adapters."""
    settings: Mapping[str, str]
    """Settings that the team plays with, by variable; MODEL is its base model."""


def zoo_names() -> tuple[str, ...]:
    """Return the names of the available teams."""
    return tuple(sorted(path.parent.name for path in _zoo().glob(f"*/{FACTS}")))


def zoo_team(name: str) -> ZooTeam:
    """Return a team of the zoo.

    Raises:
        SettingsError: There is no team with this name.
    """
    names = zoo_names()
    if name not in names:
        known = ", ".join(names) or "none: run in a checkout, or install the package"
        raise SettingsError(
            f"{PREFIX}{name}: the zoo has no such team; {did_you_mean(name, names)}available are "
            f"{known}."
        )
    folder = _zoo() / name
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    settings = {**facts["settings"], "MODEL": str(folder / "model")}
    return ZooTeam(name=name, folder=folder, settings=settings)


def zoo_settings(specs: Iterable[str]) -> Mapping[str, str]:
    """Return the settings of the zoo's teams among some policy specs; {} if there is no such team.

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
    """Set the settings of the zoo's teams among some policy specs in this process.

    Args:
        specs: As in `zoo_settings`.

    Returns:
        Whether there is such a team. It needs a separate server, because it has its own base model.

    Raises:
        SettingsError: As `zoo_settings`, or a variable is set to something else.
    """
    specs = list(specs)
    settings = zoo_settings(specs)
    for name, value in settings.items():
        given = os.environ.get(name, "")
        if given and _plain(given) != _plain(value):
            team = next(spec for spec in specs if PREFIX in spec)
            raise SettingsError(
                f"{name}={given}: {team} plays with {name}={value}; unset {name} for this command."
            )
    os.environ.update(settings)
    return bool(settings)


def _plain(value: str) -> str:
    """Return one spelling of a setting's value, because booleans have several."""
    try:
        return str(_BOOLEAN.validate_strings(value.strip()))
    except ValidationError:
        return value.strip()


def _zoo() -> Path:
    return Path(shipped_folder(ZOO))
