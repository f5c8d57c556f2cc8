"""HANABI_START_FROM: start from adapters of earlier runs instead of new ones."""

import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftModel
from safetensors.torch import load

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.adapter_config import adapter_config_for_wire
from hanabi_grpo.runs.manifest import is_checkpoint_of, read_manifest
from hanabi_grpo.runs.resume import ResumePoint
from hanabi_grpo.runs.saved_adapters import (
    WEIGHTS,
    SavedAdapters,
    check_same_base,
    check_same_base_of_each,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import CheckpointRef, parse_checkpoint, split_player
from hanabi_grpo.tracking.used_checkpoints import read_used
from hanabi_grpo.training.model.adapters import adapter_names, part_of, put_tensors

logger = logging.getLogger(__name__)

_SAME_CONFIG = ("r", "lora_alpha", "use_rslora")
"""Keys that determine the scale of the tensors; their names show the set of layers."""
_STARTED_FROM = "started_from"
"""Key in a checkpoint's manifest that records where its run started."""


class StartEntry(NamedTuple):
    """One entry of HANABI_START_FROM."""

    text: str
    """As it was given, e.g. "player_1=outputs/b/checkpoint-9:player_0"."""
    ref: CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where one adapter of a run starts.

    Example: of the entry "player_1=outputs/b/checkpoint-9:player_0", Start(name="player_1",
        folder=Path("outputs/b/checkpoint-9"), adapter="player_0", …)
    """

    name: str
    """The adapter of this run, "player_1"."""
    folder: Path
    """The checkpoint: the newest one for a run, the local copy for a remote place."""
    adapter: str
    """The adapter of the checkpoint."""
    entry: str
    """The entry of HANABI_START_FROM."""
    saved: SavedAdapters
    """All adapters of the checkpoint."""


def parse_start(entries: Sequence[str], names: Sequence[str]) -> dict[str, StartEntry]:
    """Read HANABI_START_FROM.

    An entry is a checkpoint (see `refs`) for the adapter named before it, or without a name, for
    every adapter that has no entry of its own.

    Args:
        entries: The setting's list.
        names: The adapters of the run.

    Returns:
        The entry of each adapter that starts from a checkpoint.

    Raises:
        SettingsError: A player is not in the run, or has two entries.
    """
    entry_of: dict[str | None, StartEntry] = {}
    for text in entries:
        player, reference = split_player(text)
        if player not in (None, *names):
            raise SettingsError(
                f"HANABI_START_FROM: {text!r}: this run has no adapter {player}; allowed: "
                f"{', '.join(names)}."
            )
        if player in entry_of:
            raise SettingsError(
                f"HANABI_START_FROM: {entry_of[player].text!r} and {text!r} are both for "
                f"{player or 'every player'}; name each player once, as in player_0=CHECKPOINT."
            )
        ref = parse_checkpoint(reference, where="HANABI_START_FROM: ")
        entry_of[player] = StartEntry(text, ref)
    for_everybody = entry_of.get(None)
    starts = {}
    for name in names:
        start = entry_of.get(name, for_everybody)
        if start is not None:
            starts[name] = start
    return starts


def read_start(settings: Settings) -> list[Start]:
    """Read every checkpoint of HANABI_START_FROM.

    Raises:
        SettingsError: A checkpoint is missing or damaged, or lacks the adapter.
    """
    names = adapter_names(settings.players, settings.adapters)
    starts = []
    read_once = functools.cache(read_used)
    for name, entry in parse_start(settings.start_from, names).items():
        try:
            folder, saved = read_once(entry.ref.place, settings.output_dir)
            adapter = saved.choose(name, entry.ref.adapter)
        except (OSError, SettingsError) as error:
            raise SettingsError(f"HANABI_START_FROM={entry.text}: {error}") from error
        starts.append(
            Start(name=name, folder=folder, adapter=adapter, entry=entry.text, saved=saved)
        )
    return starts


def start_adapters(model: PeftModel, settings: Settings, resume: ResumePoint | None) -> None:
    """Load the adapters of HANABI_START_FROM into a model with new adapters.

    The optimizer starts from scratch, because its moments belong to the earlier run.

    Args:
        model: The model with the run's adapters.
        settings: The run's settings.
        resume: Where the run resumes, in which case it keeps its own adapters; None for a new run.

    Raises:
        SettingsError: See `read_start`; or an adapter has a different rank or alpha.
        RunFolderError: An adapter's tensors belong to a different model.
    """
    if resume is not None:
        if settings.start_from:
            logger.info(
                "HANABI_START_FROM is not read again: the run continues from %s", resume.checkpoint
            )
        return
    for start in read_start(settings):
        weights, config = start.saved.adapters[start.adapter]
        peft_config = part_of(model, start.name).peft_config[start.name]
        own_config = adapter_config_for_wire(peft_config.to_dict())
        for key in _SAME_CONFIG:
            if key in config and config[key] != own_config[key]:
                raise SettingsError(
                    f"HANABI_START_FROM={start.entry}: {key} is {config[key]} there and "
                    f"{own_config[key]} here; set LORA_RANK and LORA_ALPHA to that run's values."
                )
        put_tensors(model, start.name, load(weights), f"HANABI_START_FROM={start.entry}")
        logger.info(
            "%s starts from %s of %s (step %d)",
            start.name,
            start.adapter,
            start.folder,
            start.saved.step,
        )


def check_base(settings: Settings, resume: ResumePoint | None, facts: Mapping[str, Any]) -> None:
    """Compare the base model of the checkpoints with the server's.

    Args:
        settings: The run's settings.
        resume: Where the run resumes, in which case nothing is compared; None for a new run.
        facts: The server's model_fingerprint, tokenizer_hash and chat_hash.

    Raises:
        SettingsError: The base model, tokenizer or chat format differs.
    """
    if resume is not None:
        return
    for start in read_start(settings):
        try:
            is_recorded = check_same_base(
                start.folder, start.saved, facts, adapter=start.adapter, player=start.name
            )
        except SettingsError as error:
            raise SettingsError(f"HANABI_START_FROM={start.entry}: {error}") from error
        if not is_recorded:
            logger.warning(
                "%s: the base model that it was trained on is not recorded", start.folder
            )


def check_resumed_base(resume: ResumePoint | None, facts: Mapping[str, Any]) -> None:
    """Compare each player's base model of a resumed run with the server's present one.

    Args:
        resume: Where the run resumes; None for a new run.
        facts: The server's facts, as for `check_base`.

    Raises:
        SettingsError: The base model, tokenizer or chat format differs from the checkpoint's.
    """
    if resume is None:
        return
    check_same_base_of_each(resume.checkpoint, read_manifest(resume.checkpoint).facts, facts)


def recorded_start(settings: Settings, resume: ResumePoint | None) -> dict[str, Any]:
    """Return where the adapters started, for the manifests of checkpoints.

    Args:
        settings: The run's settings.
        resume: Where the run resumes. A checkpoint of its own keeps its record; another run's is
            itself where the adapters started.

    Returns:
        {adapter: {"folder", "adapter", "step", "sha256"}}.
    """
    if resume is not None and _is_fork(settings, resume):
        return _start_of_fork(resume)
    if resume is not None:
        return dict(read_manifest(resume.checkpoint).facts.get(_STARTED_FROM, {}))
    record = {}
    for start in read_start(settings):
        weights, _ = start.saved.adapters[start.adapter]
        record[start.name] = {
            "folder": str(start.folder),
            "adapter": start.adapter,
            "step": start.saved.step,
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
    return record


def _is_fork(settings: Settings, resume: ResumePoint) -> bool:
    """Tell whether a run continues from the checkpoint of another one."""
    if settings.output_dir is None:
        return False
    return not is_checkpoint_of(resume.checkpoint, settings.output_dir)


def _start_of_fork(resume: ResumePoint) -> dict[str, Any]:
    """Return where the adapters of a fork started; see `recorded_start`."""
    manifest = read_manifest(resume.checkpoint)
    record = {}
    for name in manifest.facts.get("adapters", ()):
        weights = manifest.files.get(f"{name}/{WEIGHTS}")
        record[name] = {
            "folder": str(resume.checkpoint),
            "adapter": name,
            "step": manifest.step,
            "sha256": weights.sha256 if weights is not None else "",
        }
    return record
