"""Adapters of a checkpoint folder, as they are pushed to a rollout server."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.adapter_config import adapter_config_for_wire
from hanabi_grpo.runs.checkpoints import find_checkpoint
from hanabi_grpo.runs.manifest import CHECKPOINT_NAME, MANIFEST, Manifest, read_manifest
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, adapter_of, player_names

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
SAME_FACTS = {
    "model_fingerprint": "base model",
    "tokenizer_hash": "tokenizer",
    "chat_hash": "chat format",
}
"""Facts of a manifest that must be those of the server, and what they are of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapters:
    """Every adapter of one checkpoint."""

    step: int
    """Optimizer steps behind the weights."""
    lora_rank: int
    adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]
    """Name to safetensors bytes and PEFT configuration, names ascending."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its manifest adds, e.g. {"model_fingerprint": "9f3c…"}."""

    def choose(self, player: str, adapter: str | None = None) -> str:
        """Return the adapter that plays for a player: the chosen one, else its own; or raise a
        SettingsError.
        """
        name = adapter or adapter_of(player, self.adapters)
        if name not in self.adapters:
            raise SettingsError(
                f"no adapter {adapter or player} in it; it has {', '.join(self.adapters)}. Choose "
                "one with "
                f":{next(iter(self.adapters))} behind the folder."
            )
        return name


def read_adapters(folder: Path) -> SavedAdapters:
    """Read `checkpoint-N/<adapter>/{adapter_config.json,adapter_model.safetensors}`, or raise a
    SettingsError.

    One player's folder, as `hanabi-grpo export` writes it, holds the two files itself; its manifest
    says who it is. The bytes are compared with the manifest's hashes; other files of the checkpoint
    need not be there. A folder without a manifest is read as it is."""
    if not folder.is_dir():
        raise SettingsError(f"--checkpoint {folder}: no such folder; give a run's checkpoint-N.")
    try:
        manifest = read_manifest(folder) if (folder / MANIFEST).exists() else None
    except RunFolderError as error:
        raise SettingsError(f"{error} Take another checkpoint.") from error
    adapters: dict[str, tuple[bytes, Mapping[str, Any]]] = {}
    for name, weights in _weight_files(folder, manifest).items():
        try:
            config = json.loads(_read(folder, weights.parent / CONFIG, manifest).decode("utf-8"))
            adapters[name] = (_read(folder, weights, manifest), adapter_config_for_wire(config))
        except SettingsError:
            raise
        except (OSError, ValueError, AttributeError) as error:
            raise SettingsError(
                f"{weights.parent}: cannot be read as a PEFT adapter ({error})."
            ) from error
    if not adapters:
        raise SettingsError(
            f"--checkpoint {folder}: no */{WEIGHTS} in it; give a run's checkpoint-N."
        )
    listed = [name for name in (manifest.files if manifest else ()) if name.endswith(f"/{WEIGHTS}")]
    if missing := sorted(
        name for name in listed if name.removesuffix(f"/{WEIGHTS}") not in adapters
    ):
        raise SettingsError(
            f"{folder}: {missing[0]} is missing; {MANIFEST} lists it. Take another checkpoint."
        )
    ranks = {name: config.get("r") for name, (_, config) in adapters.items()}
    rank = next(iter(ranks.values()))
    if type(rank) is not int or len(set(ranks.values())) != 1:
        raise SettingsError(
            f"--checkpoint {folder}: its adapters need one LoRA rank, but have {ranks}."
        )
    return SavedAdapters(
        step=_step(folder, manifest),
        lora_rank=rank,
        adapters=adapters,
        facts=manifest.facts if manifest else {},
    )


def newest_checkpoint(folder: Path) -> Path:
    """Return a checkpoint's folder as it is, and for a run (see `run_home`) the newest one that is
    whole, if any.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder}: no such folder; give a run, or its checkpoint-N.")
    folder = run_home(folder)
    if CHECKPOINT_NAME.fullmatch(folder.resolve().name) or not any(folder.glob("checkpoint-*")):
        return folder
    try:
        return find_checkpoint(folder).folder
    except RunFolderError as error:
        raise SettingsError(str(error)) from error


def check_same_base(folder: Path, saved: SavedAdapters, server: Mapping[str, Any]) -> bool:
    """Compare what adapters were trained on with a server (else a SettingsError); tells whether
    they say it at all.
    """
    for name, what in SAME_FACTS.items():
        if name in saved.facts and name in server and saved.facts[name] != server[name]:
            raise SettingsError(
                f"{folder} was trained with another {what}: {saved.facts[name]}, the server has "
                f"{server[name]}. Take a "
                "checkpoint of a run on this MODEL, or start the server with that run's MODEL and "
                "HANABI_THINKING."
            )
    return saved.facts.keys() >= SAME_FACTS.keys()


def _weight_files(folder: Path, manifest: Manifest | None) -> dict[str, Path]:
    found = {path.parent.name: path for path in sorted(folder.glob(f"*/{WEIGHTS}"))}
    if found or not (folder / WEIGHTS).is_file():
        return found
    names = manifest.facts.get("adapters") if manifest else None
    if not (
        isinstance(names, list)
        and len(names) == 1
        and names[0] in (*player_names(MAX_PLAYERS), SHARED_ADAPTER)
    ):
        raise SettingsError(
            f"{folder}: which player this adapter is, is unknown: no {MANIFEST} in it says so. "
            "Put it into "
            "checkpoint-N/player_0 (N: its optimizer steps), and name checkpoint-N."
        )
    return {str(names[0]): folder / WEIGHTS}


def _read(folder: Path, path: Path, manifest: Manifest | None) -> bytes:
    data = path.read_bytes()
    if manifest is not None:
        name = path.relative_to(folder).as_posix()
        entry = manifest.files.get(name)
        if entry is None:
            raise SettingsError(
                f"{folder}: {name} is not listed in {MANIFEST}. Take another checkpoint."
            )
        if (sha256 := hashlib.sha256(data).hexdigest()) != entry.sha256:
            raise SettingsError(
                f"{folder}: {name} has sha256 {sha256}, {MANIFEST} says {entry.sha256}. Take "
                "another checkpoint."
            )
    return data


def _step(folder: Path, manifest: Manifest | None) -> int:
    named = CHECKPOINT_NAME.fullmatch(folder.resolve().name)
    if manifest is None and named is None:
        raise SettingsError(
            f"--checkpoint {folder}: how many steps it was trained for is unknown without a "
            f"{MANIFEST}; name it "
            "checkpoint-N."
        )
    step = manifest.step if manifest else int(named[1]) if named else 0
    if named and int(named[1]) != step:
        raise SettingsError(
            f"--checkpoint {folder}: its {MANIFEST} is that of step {step}; which is it?"
        )
    return step
