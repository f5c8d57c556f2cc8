"""Conditions of a comparison: settings in which arms, or runs of one arm, differ."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hanabi_grpo.evaluation.comparison.arms import Arm
from hanabi_grpo.settings import Affects, variables
from hanabi_grpo.settings.variables import typed

_ABSOLUTE_PATH = re.compile(r"(?<![^=,:; ])/[^=,:; ]+")


def condition_notes(arms: Sequence[Arm]) -> list[str]:
    """Return sentences about settings that differ, and about seeds that are used twice.

    An arm's settings are compared with the first arm's, and its runs with each other. Runs without
    `settings.json` are left out.
    """
    values = [_values_by_setting(arm) for arm in arms]
    notes = []
    for arm, arm_values in zip(arms[1:], values[1:], strict=True):
        notes += _notes_between(arm, arm_values, arms[0], values[0])
    for arm, arm_values in zip(arms, values, strict=True):
        notes += _notes_within(arm, arm_values)
    return notes


def _values_by_setting(arm: Arm) -> dict[str, list[str]]:
    """Return the different values of each setting that matters, as one types them."""
    without_effect = {variable.env for variable in variables() if not variable.affects.is_condition}
    values: dict[str, list[str]] = {}
    for run in arm.runs:
        for name, value in run.settings.items():
            if name in without_effect:
                continue
            text = typed(value)
            known = values.setdefault(name, [])
            if text not in known:
                known.append(text)
    return values


def _notes_between(
    arm: Arm, values: Mapping[str, list[str]], first: Arm, first_values: Mapping[str, list[str]]
) -> list[str]:
    """Return a note about settings that are the same within two arms and differ between them."""
    changed = []
    for name, texts in values.items():
        first_texts = first_values.get(name, [])
        if len(texts) == len(first_texts) == 1 and texts != first_texts:
            changed.append(f"{name}={_shortened(texts[0])} (there {_shortened(first_texts[0])})")
    if not changed:
        return []
    return [f"Settings of {arm.name} that differ from those of {first.name}: {', '.join(changed)}."]


def _notes_within(arm: Arm, values: Mapping[str, list[str]]) -> list[str]:
    """Return notes about settings in which the runs of an arm differ, and about shared seeds."""
    notes = []
    for name, texts in values.items():
        if len(texts) > 1:
            shown = ", ".join(map(_shortened, texts))
            notes.append(f"The runs of {arm.name} differ in {name}: {shown}.")
    seed_names = [variable.env for variable in variables() if variable.affects is Affects.SEED]
    seeds = []
    for run in arm.runs:
        if "SEED" in run.settings:
            seeds.append(tuple(run.settings.get(name) for name in seed_names))
    if len(set(seeds)) < len(seeds):
        notes.append(
            f"Runs of {arm.name} share {' and '.join(seed_names)}: they are not independent seeds."
        )
    return notes


def _shortened(value: str) -> str:
    """Return a value whose absolute paths keep their last two names: tables are published."""
    shortened = _ABSOLUTE_PATH.sub(lambda match: "/".join(Path(match[0]).parts[-2:]), value)
    return shortened or "unset"
