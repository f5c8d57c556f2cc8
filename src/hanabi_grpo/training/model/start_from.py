"""HANABI_START_FROM: adapters of earlier runs in the place of new ones."""

import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from safetensors.torch import load

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.adapter_config import adapter_config_for_wire
from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.runs.resume import ResumePoint
from hanabi_grpo.runs.saved_adapters import SavedAdapters, check_same_base
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import CheckpointRef, parse_checkpoint, split_player
from hanabi_grpo.tracking.used_checkpoints import read_used
from hanabi_grpo.training.model.adapters import adapter_names, put_tensors

logger = logging.getLogger(__name__)

_SAME_CONFIG = ("r", "lora_alpha", "use_rslora")
"""What the same tensors are multiplied by; the set of layers shows in their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where one adapter of a run starts, e.g. of the entry
    "player_1=outputs/b/checkpoint-9:player_0".
    """

    name: str
    """The adapter of this run, "player_1"."""
    folder: Path
    """The checkpoint: of a run the newest, of what lies elsewhere the folder here."""
    adapter: str
    word: str
    saved: SavedAdapters


def parse_start(
    entries: Sequence[str], names: Sequence[str]
) -> dict[str, tuple[str, CheckpointRef]]:
    """Read HANABI_START_FROM; returns the entry of each adapter of the run, as text and as a value.

    An entry is a checkpoint (see `refs`) for every adapter that has none of its own, or for the one
    named before it. A player that is not of the run, or two entries for one, is a SettingsError.
    """
    found: dict[str | None, tuple[str, CheckpointRef]] = {}
    for entry in entries:
        player, word = split_player(entry)
        if player not in (None, *names):
            raise SettingsError(
                f"HANABI_START_FROM: {entry!r}: this run has no adapter {player}; allowed: "
                f"{', '.join(names)}."
            )
        if player in found:
            both = f"{found[player][0]!r} and {entry!r} are both for {player or 'every player'}"
            raise SettingsError(
                f"HANABI_START_FROM: {both}; name each player once, as player_0= before one."
            )
        found[player] = (entry, parse_checkpoint(word, where="HANABI_START_FROM: "))
    starts = {name: found.get(name, found.get(None)) for name in names}
    return {name: start for name, start in starts.items() if start is not None}


def read_start(settings: Settings) -> list[Start]:
    """Read every checkpoint of HANABI_START_FROM; a SettingsError: one is missing or damaged, or
    lacks the adapter.
    """
    names = adapter_names(settings.players, settings.adapters)
    starts = []
    read_once = functools.cache(read_used)
    for name, (entry, ref) in parse_start(settings.start_from, names).items():
        try:
            folder, saved = read_once(ref.place, settings.output_dir)
            adapter = saved.choose(name, ref.adapter)
        except (OSError, SettingsError) as error:
            raise SettingsError(f"HANABI_START_FROM={entry}: {error}") from error
        starts.append(Start(name=name, folder=folder, adapter=adapter, word=entry, saved=saved))
    return starts


def start_adapters(model: PeftModel, settings: Settings, resume: ResumePoint | None) -> None:
    """Put the adapters of HANABI_START_FROM into a model whose adapters are new; a resumed run
    keeps its own.

    The optimizer starts anew: moments belong to the run that made them.

    Raises:
        SettingsError: See `read_start`; or an adapter of another rank or alpha.
        RunFolderError: Its tensors are of another model.
    """
    if resume is not None:
        if settings.start_from:
            logger.info(
                "HANABI_START_FROM is not read again: the run goes on from %s", resume.checkpoint
            )
        return
    for start in read_start(settings):
        weights, config = start.saved.adapters[start.adapter]
        own = adapter_config_for_wire(model.peft_config[start.name].to_dict())
        for key in _SAME_CONFIG:
            if key in config and config[key] != own[key]:
                raise SettingsError(
                    f"HANABI_START_FROM={start.word}: {key} is {config[key]} there and {own[key]} "
                    "here; set LORA_RANK "
                    "and LORA_ALPHA to those of that run."
                )
        put_tensors(model, start.name, load(weights), f"HANABI_START_FROM={start.word}")
        logger.info(
            "%s starts from %s of %s (step %d)",
            start.name,
            start.adapter,
            start.folder,
            start.saved.step,
        )


def check_base(settings: Settings, resume: ResumePoint | None, facts: Mapping[str, Any]) -> None:
    """Compare what the checkpoints were trained on with the server's model_fingerprint,
    tokenizer_hash and chat_hash.

    Raises:
        SettingsError: Another base model, tokenizer or chat format.
    """
    for start in read_start(settings) if resume is None else ():
        try:
            is_said = check_same_base(start.folder, start.saved, facts)
        except SettingsError as error:
            raise SettingsError(f"HANABI_START_FROM={start.word}: {error}") from error
        if not is_said:
            logger.warning("%s: nothing says on which base model it was trained", start.folder)


def recorded_start(settings: Settings, resume: ResumePoint | None) -> dict[str, Any]:
    """Return {adapter: {"folder", "adapter", "step", "sha256"}} for manifests; a resumed run hands
    on what it was.
    """
    if resume is not None:
        return dict(read_manifest(resume.checkpoint).facts.get("started_from", {}))
    return {
        start.name: {
            "folder": str(start.folder),
            "adapter": start.adapter,
            "step": start.saved.step,
            "sha256": hashlib.sha256(start.saved.adapters[start.adapter][0]).hexdigest(),
        }
        for start in read_start(settings)
    }
