"""Names in the environment that are nearly those of settings, such as MAX_STEP: nothing reads them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import variables
from hanabi_grpo.settings.sources import DOTENV, SHELL, read_sources
from hanabi_grpo.settings.variables import PASSED_THROUGH

_SHORT = 7
"""Letters below which only a moved letter counts: MODE, SPEED and PORTS are words of their own."""
_OTHERS = frozenset({"VLLM_MODEL", "WANDB_MODEL"})
"""Names of other software that are one letter from a setting."""


def misspelt_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that are one letter from a setting, and the setting that each was meant for.

    One letter is missing, added, wrong, or moved a little; case and underscores do not count. A setting that is itself
    among the names was not meant: then the other name is there on purpose.

    Example:
        misspelt_names(["MAX_STEP", "PORTS", "PATH"]) == {"MAX_STEP": "MAX_STEPS"}
    """
    known = {_letters(env): env for env in (*(variable.env for variable in variables()), *PASSED_THROUGH)}
    given = set(names)
    found = {}
    for name in sorted(given - set(known.values()) - _OTHERS):
        letters = _letters(name)
        meant = known.get(letters) if len(letters) >= _SHORT else None
        meant = meant or next((env for right, env in known.items() if _is_slip(letters, right)), None)
        if meant and meant not in given:
            found[name] = meant
    return found


def check_names(environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)) -> None:
    """Refuse variables of the shell (`environ`; None: this process's), `.env` and the profile that look misspelt.

    Raises:
        SettingsError: One line for each of them, with what to do.
    """
    sources = read_sources(environ, dotenv)
    places = {name: source for source in reversed(sources) for name in source.values}
    lines = []
    for name, meant in misspelt_names(places).items():
        # Those with our prefix are refused as unknown names.
        if not name.upper().startswith("HANABI_"):
            source = places[name]
            away = f"unset {name}" if source.origin == SHELL else f"remove its line from {source.place}"
            lines.append(
                f"{name} (from {source.place}): no such setting; did you mean {meant}? Rename it; if it is meant for "
                f"other software, keep it from this command: {away}."
            )
    if lines:
        raise SettingsError("\n".join(lines))


def _letters(name: str) -> str:
    return name.upper().replace("_", "")


def _is_slip(name: str, right: str) -> bool:
    """Tell whether a name is one letter from the right one: both are the same without one letter."""
    if name == right or (len(right) < _SHORT and sorted(name) != sorted(right)):
        return False
    return bool(_cut(name) & _cut(right))


def _cut(name: str) -> set[str]:
    return {name, *(name[:index] + name[index + 1 :] for index in range(len(name)))}
