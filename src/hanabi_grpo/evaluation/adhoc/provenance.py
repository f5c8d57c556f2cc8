"""The partners that a run has met in training: they are not held out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.runs.manifest import CHECKPOINT_NAME, read_manifest
from hanabi_grpo.runs.run_folder import recorded_settings, run_of
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings.partners import without_weight
from hanabi_grpo.settings.refs import (
    AdapterRef,
    CheckpointRef,
    Ref,
    Role,
    parse_checkpoint,
    split_player,
)

TRAINED_WITH = "trained with"
TAUGHT_BY = "taught by"
OWN_RUN = "its own run"
HELD_OUT = ""
"""Relation of partners that a run has not met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The partners that a candidate has met in training."""

    met: Mapping[str, str] = field(default_factory=dict)
    """By policy spec `TRAINED_WITH` or `TAUGHT_BY`."""
    run: Path | None = None
    """Its run's folder; None: unknown."""

    def relation(self, partner: Ref) -> str:
        """Return how the candidate met a partner in training; `HELD_OUT` if it did not."""
        text = str(partner)
        if text in self.met:
            return self.met[text]
        folder = _run_folder(partner)
        if folder is None:
            return HELD_OUT
        if folder == self.run:
            return OWN_RUN
        for spec, relation in self.met.items():
            # Another checkpoint of a run that it trained with is not held out either.
            if _same_run(spec, folder):
                return relation
        return HELD_OUT


def history_of(candidate: Ref, served: Served | None) -> History:
    """Return the partners that a candidate has met, by its checkpoint and its run's settings.

    Args:
        candidate: A checkpoint, or an adapter of the server, whose session's run counts; others
            have met no partner.
        served: How models are played; None: no model plays.
    """
    folder: Path | None = None
    if isinstance(candidate, CheckpointRef) and isinstance(candidate.place, Path):
        folder = candidate.place
    elif candidate is Role.SERVED or isinstance(candidate, AdapterRef):
        folder = served.resolver.session_run() if served is not None else None
    if folder is None:
        return History()
    try:
        checkpoint = newest_checkpoint(folder)
        facts: Mapping[str, Any] = read_manifest(checkpoint).facts
    except HanabiGrpoError:
        checkpoint = folder
        facts = {}
    run = run_of(checkpoint)
    settings = recorded_settings(run) if run is not None else {}
    met: dict[str, str] = {}
    for spec in _specs(settings.get("HANABI_TEACHER")):
        met[spec] = TAUGHT_BY
    # Runs of earlier versions recorded no partners; the partners in their settings count.
    for spec in facts.get("trained_with") or _specs(settings.get("HANABI_PARTNERS")):
        met[str(spec)] = TRAINED_WITH
    return History(met=met, run=run)


def _specs(value: object) -> list[str]:
    """Return the policy specs of a comma list, without seats and weights."""
    if not isinstance(value, str):
        return []
    entries = [entry.strip() for entry in value.split(",")]
    return [split_player(without_weight(entry))[1] for entry in entries if entry]


def _run_folder(ref: Ref) -> Path | None:
    """Return the folder of the run, or of the warm start, of a checkpoint; else its own."""
    if not isinstance(ref, CheckpointRef) or not isinstance(ref.place, Path):
        return None
    folder = ref.place.resolve()
    run = run_of(folder)
    if run is None and CHECKPOINT_NAME.fullmatch(folder.name):
        # A warm start keeps no settings beside its checkpoint.
        return folder.parent
    return run or folder


def _same_run(spec: str, folder: Path) -> bool:
    try:
        return _run_folder(parse_checkpoint(spec)) == folder
    except SettingsError:
        return False
