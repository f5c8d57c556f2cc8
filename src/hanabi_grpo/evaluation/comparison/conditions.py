"""In which settings runs differ: what a difference between arms can be due to."""

import re
from collections.abc import Sequence
from pathlib import Path

from hanabi_grpo.evaluation.comparison.runs import Arm
from hanabi_grpo.settings.variables import typed

_SEEDS = ("SEED", "HANABI_DEAL_SEED")
_NO_MATTER = frozenset(
    {
        *_SEEDS,
        *("OUTPUT_DIR", "RESUME", "SAVE_STEPS", "SAVE_TOTAL_LIMIT", "HANABI_EPISODES_EVERY", "REPORT_TO"),
        *("PORT", "HANABI_HOST", "HANABI_API_KEY", "VLLM_SERVER_HOST", "VLLM_SERVER_PORT", "HANABI_DIE_WITH_PARENT"),
        *("HANABI_SESSION_TIMEOUT", "HANABI_SERVER_TIMEOUT", "HANABI_ROLLOUT_TIMEOUT", "HANABI_ENGINE_RESTARTS"),
        *("UPLOAD_CKPT_TO_WANDB", "CKPT_ARTIFACT_NAME", "CKPT_ARTIFACT_ALIASES"),
    }
)
"""Settings that change no game and no update."""
_ABSOLUTE = re.compile(r"(?<![^=,:; ])/[^=,:; ]+")


def condition_notes(arms: Sequence[Arm]) -> list[str]:
    """Return sentences: settings of an arm that differ from the first arm's, or within it, and seeds used twice.

    Runs without `settings.json` are left out.
    """
    values = [_values(arm) for arm in arms]
    notes = []
    for arm, own in zip(arms[1:], values[1:], strict=True):
        changed = [
            f"{name}={_shown(found[0])} (there {_shown(values[0][name][0])})"
            for name, found in own.items()
            if len(found) == 1 and len(values[0].get(name, ())) == 1 and found != values[0][name]
        ]
        if changed:
            notes.append(f"Settings of {arm.name} that differ from those of {arms[0].name}: {', '.join(changed)}.")
    spread: dict[str, list[str]] = {}
    for arm, own in zip(arms, values, strict=True):
        for name, found in own.items():
            if len(found) > 1:
                spread.setdefault(f"{name}: {', '.join(map(_shown, found))}", []).append(arm.name)
    for what, names in spread.items():
        of = "each arm" if 1 < len(names) == len(arms) else ", ".join(names)
        notes.append(f"The runs of {of} differ in {what}.")
    for arm in arms:
        seeds = [tuple(run.settings.get(name) for name in _SEEDS) for run in arm.runs if "SEED" in run.settings]
        if len(set(seeds)) < len(seeds):
            notes.append(f"Runs of {arm.name} share SEED and HANABI_DEAL_SEED: they are no independent seeds.")
    return notes


def _values(arm: Arm) -> dict[str, list[str]]:
    """Return per setting that matters the different values in an arm, as one types them."""
    found: dict[str, dict[str, None]] = {}
    for run in arm.runs:
        for name, value in run.settings.items():
            if name not in _NO_MATTER and not name.startswith("WANDB_"):
                found.setdefault(name, {})[typed(value)] = None
    return {name: list(values) for name, values in found.items()}


def _shown(value: str) -> str:
    """Return a value whose absolute paths keep their last two names: tables are published."""
    return _ABSOLUTE.sub(lambda found: "/".join(Path(found[0]).parts[-2:]), value) or "unset"
