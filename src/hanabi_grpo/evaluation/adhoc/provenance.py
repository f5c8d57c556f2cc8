"""The partners that a run has met in training: they are not held out."""

from collections.abc import Iterator, Mapping
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
    BestPlace,
    CheckpointRef,
    Ref,
    Role,
    ScriptRef,
    parse_checkpoint,
    split_player,
)
from hanabi_grpo.tracking.used_checkpoints import recorded_checkpoints

TRAINED_WITH = "trained with"
TAUGHT_BY = "taught by"
STARTED_FROM = "started from"
OWN_RUN = "its own run"
HELD_OUT = ""
"""Relation of partners that a run has not met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The partners that a candidate has met in training, or that a run it started from has met."""

    met: Mapping[str, str] = field(default_factory=dict)
    """By policy spec `TRAINED_WITH`, `TAUGHT_BY` or `STARTED_FROM`."""
    folders: Mapping[Path, str] = field(default_factory=dict)
    """The same by the folder of the run, for checkpoints: all checkpoints of a run count as met."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """See `Environment.variants`."""
    run: Path | None = None
    """Its run's folder; None: unknown."""
    missing: tuple[Path, ...] = ()
    """Checkpoints that it started from and that are not here: whom they met is unknown."""

    def relation(self, partner: Ref) -> str:
        """Return how the candidate met a partner in training; `HELD_OUT` if it did not."""
        if isinstance(partner, ScriptRef):
            return self._relation_of_script(partner.name)
        if str(partner) in self.met:
            return self.met[str(partner)]
        if not isinstance(partner, CheckpointRef) or not isinstance(partner.place, Path):
            return HELD_OUT
        folder = _folder_of_run(partner.place)
        if folder == self.run:
            return OWN_RUN
        return self.folders.get(folder, HELD_OUT)

    def _relation_of_script(self, name: str) -> str:
        plays_like = self.variants.get(name, name)
        for spec, relation in self.met.items():
            if self.variants.get(spec, spec) == plays_like:
                return relation
        return HELD_OUT


def history_of(
    candidate: Ref, served: Served | None, variants: Mapping[str, str] | None = None
) -> History:
    """Return the partners that a candidate has met.

    Read from its checkpoint and its run's settings, and from those of the runs that it started
    from.

    Args:
        candidate: A checkpoint, or an adapter of the server, whose session's run counts; others
            have met no partner.
        served: How models are played; None: no model plays.
        variants: See `Environment.variants`.
    """
    place: Path | None = None
    if isinstance(candidate, CheckpointRef) and isinstance(candidate.place, Path):
        place = candidate.place
    elif candidate is Role.SERVED or isinstance(candidate, AdapterRef):
        place = served.resolver.session_run() if served is not None else None
    if place is None:
        return History()
    met: dict[str, str] = {}
    folders: dict[Path, str] = {}
    missing = []
    first = _read(place)
    waiting = [first]
    read = {first.checkpoint}
    while waiting:
        records = waiting.pop(0)
        for spec, relation in records.met():
            met.setdefault(spec, relation)
            folder = records.folder_of(spec)
            if folder is not None:
                folders.setdefault(folder, relation)
        for start in records.starts():
            folders.setdefault(_folder_of_run(start), STARTED_FROM)
            if not start.is_dir():
                missing.append(start)
                continue
            earlier = _read(start)
            if earlier.checkpoint not in read:
                read.add(earlier.checkpoint)
                waiting.append(earlier)
    return History(
        met=met, folders=folders, variants=variants or {}, run=first.run, missing=tuple(missing)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """What a checkpoint and its run recorded about the run's training."""

    checkpoint: Path
    facts: Mapping[str, Any]
    """Facts of the checkpoint's manifest."""
    run: Path | None
    settings: Mapping[str, Any]
    """The run's settings by variable."""

    def met(self) -> Iterator[tuple[str, str]]:
        """Return the specs of teachers and partners, and how the run met them."""
        for spec in _specs(self.settings.get("HANABI_TEACHER")):
            yield spec, TAUGHT_BY
        # A downloaded checkpoint has no settings beside it.
        for taught in self.facts.get("taught_by", {}).values():
            yield str(taught["teacher"]), TAUGHT_BY
        # Runs of earlier versions recorded no partners; the partners in their settings count.
        trained_with = self.facts.get("trained_with")
        for spec in trained_with or _specs(self.settings.get("HANABI_PARTNERS")):
            yield str(spec), TRAINED_WITH

    def starts(self) -> list[Path]:
        """Return the checkpoints that the run's adapters started from."""
        starts = self.facts.get("started_from", {}).values()
        return list(dict.fromkeys(Path(start["folder"]) for start in starts))

    def folder_of(self, spec: str) -> Path | None:
        """Return the folder of the run of a checkpoint that was met; None if it is no folder."""
        try:
            place = parse_checkpoint(spec).place
            used = recorded_checkpoints(self.run).get(str(place))
        except SettingsError:
            return None
        if isinstance(place, BestPlace):
            return _folder_of_run(place.run)
        if used is not None:
            return _folder_of_run(Path(used.folder))
        return _folder_of_run(place) if isinstance(place, Path) else None


def _read(place: Path) -> _Records:
    facts: Mapping[str, Any] = {}
    try:
        checkpoint = newest_checkpoint(place)
        facts = read_manifest(checkpoint).facts
    except HanabiGrpoError:
        checkpoint = place
    run = run_of(checkpoint)
    return _Records(
        checkpoint=checkpoint.resolve(),
        facts=facts,
        run=run,
        settings=recorded_settings(run) if run is not None else {},
    )


def _specs(value: object) -> list[str]:
    """Return the policy specs of a comma list, without seats and weights."""
    if not isinstance(value, str):
        return []
    entries = [entry.strip() for entry in value.split(",")]
    return [split_player(without_weight(entry))[1] for entry in entries if entry]


def _folder_of_run(place: Path) -> Path:
    """Return the folder of the run, or of the warm start, of a checkpoint; else its own."""
    folder = place.resolve()
    run = run_of(folder)
    if run is None and CHECKPOINT_NAME.fullmatch(folder.name):
        # A warm start keeps no settings beside its checkpoint.
        return folder.parent
    return run or folder
