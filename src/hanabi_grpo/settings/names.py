"""Names of variables: unknown and renamed ones are refused, misspelled ones recognized."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.model import renamed_variables, variables
from hanabi_grpo.settings.sources import COMMAND_LINE, DOTENV, SHELL, Source, read_sources
from hanabi_grpo.settings.variables import PASSED_THROUGH

ENV = "HANABI_ENV"
"""Selects the environment, and with it the available variables."""
PREFIX = "HANABI_"
"""Every name that begins with it is one of ours."""
RENAMED_IN = "0.3"
"""Version in which variables were renamed."""
_SHORT = 7
"""Names with fewer letters match only if a letter moved: MODE, SPEED and PORTS are real words."""
_CUSTOMARY = {
    "LR": "LEARNING_RATE",
    "BATCH_SIZE": "PER_DEVICE_TRAIN_BATCH_SIZE",
    "GROUP_SIZE": "NUM_GENERATIONS",
    "KL_COEF": "BETA",
    "LORA_R": "LORA_RANK",
    "MAX_NEW_TOKENS": "MAX_COMPLETION_LENGTH",
    "NUM_EPOCHS": "NUM_TRAIN_EPOCHS",
    "NUM_STEPS": "MAX_STEPS",
}
"""Names that other trainers use for our settings."""
_OF_OTHERS = frozenset({"VLLM_MODEL", "WANDB_MODEL"})
"""Names of other software that are one letter from a setting."""


def unknown_names(sources: Sequence[Source], env: str) -> list[str]:
    """Return a sentence for each variable that looks like a setting but is not one.

    Args:
        sources: The sources, the winning one first.
        env: Name of the chosen environment, whose variables count.
    """
    # Without the prefix, which all names share and which would make any two look alike.
    known = {variable.env.removeprefix(PREFIX): variable.env for variable in variables(env)}
    renamed = renamed_variables()
    problems = []
    sections = {variable.env: variable.section for variable in variables(env)}
    secrets = {variable.env for variable in variables(env) if variable.secret}
    for name, source in _sources_by_name(sources).items():
        label = source.label_of(name)
        if name in known.values():
            section = source.sections.get(name)
            if section is not None and section != sections[name]:
                problems.append(
                    f"{name} (from {label}, section {section}): it belongs to section "
                    f"{sections[name]}; move it there, or out of the sections."
                )
            if source.origin == COMMAND_LINE and name in secrets:
                problems.append(
                    f"{name} (from {label}): a key on a command line is visible to everybody on "
                    f"this machine; export {name} instead."
                )
            continue
        if not name.upper().startswith(PREFIX):
            if source.is_strict and name not in PASSED_THROUGH:
                by_field = {variable.field: variable.env for variable in variables(env)}
                meant = by_field.get(name.lower()) or _meant_name(
                    name, {_letters(each): each for each in known.values()}
                )
                hint = f"did you mean {meant}?" if meant else "hanabi-grpo settings lists them."
                problems.append(f"{name} (from {label}): no such setting; {hint}")
            continue
        if name.upper() in renamed:
            problems.append(
                f"{name}={source.values[name]} (from {label}): this setting has been called "
                f"{renamed[name.upper()]} since {RENAMED_IN}; rename it."
            )
            continue
        bare = name.upper().removeprefix(PREFIX)
        hint = _hint(bare, known, env)
        problems.append(f"{name} (from {label}): no such setting; {hint}")
    return problems


def misspelt_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that are probably misspelled, each with the setting that was meant.

    One letter is missing, added, wrong, or moved a little; case and underscores do not count. Names
    that other trainers use count too. A setting that is itself among the names was not meant.

    Example:
        misspelt_names(["MAX_STEP", "PORTS", "PATH"]) == {"MAX_STEP": "MAX_STEPS"}
    """
    known_names = [variable.env for variable in variables()] + list(PASSED_THROUGH)
    known = {_letters(env): env for env in known_names}
    given = set(names)
    misspelt = {}
    for name in sorted(given - set(known_names) - _OF_OTHERS):
        meant = _meant_name(name, known)
        if meant and meant not in given:
            misspelt[name] = meant
    return misspelt


def check_names(environ: Mapping[str, str] | None = None, dotenv: Path = Path(DOTENV)) -> None:
    """Refuse variables of the shell, `.env` and the profile that look misspelled.

    Names that begin with HANABI_ are left to `load_settings`, which refuses all unknown ones.

    Args:
        environ: The shell's variables; None: this process's.
        dotenv: Path of `.env`.

    Raises:
        SettingsError: Names all of them, each with what was probably meant.
    """
    by_name = _sources_by_name(read_sources(environ, dotenv).ordered)
    lines = []
    for name, meant in misspelt_names(by_name).items():
        if name.upper().startswith(PREFIX):
            continue
        source = by_name[name]
        if source.is_strict:
            # `load_settings` refuses every unknown name from this source.
            continue
        away = f"remove its line from {source.label}"
        if source.origin == SHELL:
            away = f"unset {name}"
        lines.append(
            f"{name} (from {source.label}): no such setting; did you mean {meant}? Rename it; if "
            f"it is meant for other software, hide it from this command: {away}."
        )
    if lines:
        raise SettingsError("\n".join(lines))


def _sources_by_name(sources: Sequence[Source]) -> dict[str, Source]:
    """Return every variable's name with the source whose value wins."""
    by_name = {}
    for source in reversed(sources):
        for name in source.values:
            by_name[name] = source
    return by_name


def _hint(bare: str, known: Mapping[str, str], env: str) -> str:
    """Return what to do about an unknown name.

    Args:
        bare: The name in upper case, without the prefix.
        known: The variables of the chosen environment, by their name without the prefix.
        env: The chosen environment.
    """
    owners = [name for name in registry.names() if bare.lower() in _fields_of(name)]
    if owners and bare not in known:
        return (
            f"it belongs to {' and '.join(owners)}, but {ENV}={env}; unset it, or set "
            f"{ENV}={owners[0]}."
        )
    if bare in _CUSTOMARY:
        return f"did you mean {_CUSTOMARY[bare]}?"
    close = difflib.get_close_matches(bare, known, n=1)
    if close:
        return f"did you mean {known[close[0]]}?"
    return "hanabi-grpo settings lists them."


def _fields_of(env: str) -> Collection[str]:
    try:
        return registry.get(env).Config.model_fields
    except SettingsError:
        return ()  # a package that cannot be loaded


def _meant_name(name: str, known: Mapping[str, str]) -> str | None:
    """Return the variable that a name was meant for; None if it resembles none of ours.

    Args:
        name: The name.
        known: Every variable by its letters, see `_letters`.
    """
    if name.upper() in _CUSTOMARY:
        return _CUSTOMARY[name.upper()]
    letters = _letters(name)
    if len(letters) >= _SHORT and letters in known:
        return known[letters]
    for right, env in known.items():
        if _is_slip(letters, right):
            return env
    return None


def _letters(name: str) -> str:
    return name.upper().replace("_", "")


def _is_slip(name: str, right: str) -> bool:
    """Tell whether a name is one letter off: without one letter, both are equal."""
    if name == right:
        return False
    if len(right) < _SHORT and sorted(name) != sorted(right):
        return False
    return not _with_one_letter_less(name).isdisjoint(_with_one_letter_less(right))


def _with_one_letter_less(name: str) -> set[str]:
    """Return a name, and the name without each of its letters."""
    shorter = {name[:index] + name[index + 1 :] for index in range(len(name))}
    return shorter | {name}
