"""Conditions of a comparison: settings in which arms, or runs of one arm, differ."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.evaluation.comparison.arms import Arm, seed_settings
from hanabi_grpo.settings import variables
from hanabi_grpo.settings.variables import typed

_ABSOLUTE_PATH = re.compile(r"(?<![^=,:; ])/[^=,:; ]+")


def condition_notes(arms: Sequence[Arm]) -> list[str]:
    """Return sentences about settings that differ, and about seeds that are used twice.

    An arm's settings are compared with the first arm's, and its runs with each other. Runs without
    `settings.json` are left out.
    """
    recorded = [_ArmValues(arm=arm, values=_values_by_setting(arm)) for arm in arms]
    notes = []
    for later in recorded[1:]:
        notes += _notes_between(later, recorded[0])
    for arm_values in recorded:
        notes += _notes_within(arm_values)
    return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArmValues:
    """An arm with the settings of its runs."""

    arm: Arm
    values: Mapping[str, list[str]]
    """The different values of each setting that matters."""


def _values_by_setting(arm: Arm) -> dict[str, list[str]]:
    """Return the different values of each setting that matters, written as in a settings file."""
    ignored = set()
    for variable in variables():
        if not variable.affects.is_condition:
            ignored.add(variable.env)
    values: dict[str, list[str]] = {}
    for run in arm.runs:
        for name, value in run.settings.items():
            if name in ignored:
                continue
            text = typed(value)
            texts = values.setdefault(name, [])
            if text not in texts:
                texts.append(text)
    return values


def _notes_between(later: _ArmValues, first: _ArmValues) -> list[str]:
    """Return a note about settings that are the same within two arms and differ between them."""
    changed = []
    for name, texts in later.values.items():
        first_texts = first.values.get(name, [])
        if len(texts) == len(first_texts) == 1 and texts != first_texts:
            changed.append(f"{name}={_shortened(texts[0])} (vs. {_shortened(first_texts[0])})")
    if not changed:
        return []
    note = (
        f"Settings of {later.arm.name} that differ from those of {first.arm.name}: "
        f"{', '.join(changed)}."
    )
    return [note]


def _notes_within(arm_values: _ArmValues) -> list[str]:
    """Return notes about settings in which the runs of an arm differ, and about shared seeds."""
    arm = arm_values.arm
    notes = []
    for name, texts in arm_values.values.items():
        if len(texts) > 1:
            shown = ", ".join(map(_shortened, texts))
            notes.append(f"The runs of {arm.name} differ in {name}: {shown}.")
    seeds = [run.seed for run in arm.runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        shared = " and ".join(seed_settings())
        notes.append(f"Runs of {arm.name} share {shared}: they are not independent seeds.")
    return notes


def _shortened(value: str) -> str:
    """Return a value whose absolute paths keep their last two names: tables are published."""

    def last_two_names(match: re.Match[str]) -> str:
        return "/".join(Path(match[0]).parts[-2:])

    return _ABSOLUTE_PATH.sub(last_two_names, value) or "unset"
