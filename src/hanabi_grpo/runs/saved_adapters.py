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
from hanabi_grpo.types import MAX_PLAYERS, SHARED_ADAPTER, player_names

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


def read_adapters(folder: Path) -> SavedAdapters:
    """Read `checkpoint-N/<adapter>/{adapter_config.json,adapter_model.safetensors}`.

    One player's folder, as `hanabi-grpo export` writes it, holds the two files itself; its manifest says who it is.
    The bytes are compared with the manifest's hashes; other files of the checkpoint need not be there. A folder without
    a manifest, or with one that lists no files, as earlier versions wrote it, is read as it is.

    Raises:
        SettingsError: No such folder, no adapters in it, adapters of several ranks, no step number, or a file that is
            missing, not listed in the manifest, or not the one that was written.
    """
    if not folder.is_dir():
        raise SettingsError(f"--checkpoint {folder}: no such folder; give a run's checkpoint-N.")
    manifest = _manifest(folder)
    adapters: dict[str, tuple[bytes, Mapping[str, Any]]] = {}
    for name, weights in _weight_files(folder, manifest).items():
        try:
            config = json.loads(_read(folder, weights.parent / CONFIG, manifest).decode("utf-8"))
            adapters[name] = (_read(folder, weights, manifest), adapter_config_for_wire(config))
        except SettingsError:
            raise
        except (OSError, ValueError, AttributeError) as error:
            raise SettingsError(f"{weights.parent}: cannot be read as a PEFT adapter ({error}).") from error
    if not adapters:
        raise SettingsError(f"--checkpoint {folder}: no */{WEIGHTS} in it; give a run's checkpoint-N.")
    listed = [name for name in (manifest.files if manifest else ()) if name.endswith(f"/{WEIGHTS}")]
    if missing := sorted(name for name in listed if name.removesuffix(f"/{WEIGHTS}") not in adapters):
        raise SettingsError(f"{folder}: {missing[0]} is missing; {MANIFEST} lists it. Take another checkpoint.")
    ranks = {name: config.get("r") for name, (_, config) in adapters.items()}
    rank = next(iter(ranks.values()))
    if type(rank) is not int or len(set(ranks.values())) != 1:
        raise SettingsError(f"--checkpoint {folder}: its adapters need one LoRA rank, but have {ranks}.")
    return SavedAdapters(
        step=_step(folder), lora_rank=rank, adapters=adapters, facts=manifest.facts if manifest else {}
    )


def read_description(folder: Path) -> SavedAdapters:
    """Read what a checkpoint's small files say, its manifest and the adapters' configurations; weights are no bytes.

    Raises:
        SettingsError: There is no manifest that lists adapters, or a file is missing or not the one that was written.
    """
    manifest = _manifest(folder)
    if manifest is None:
        raise SettingsError(f"{folder.name}: has no {MANIFEST} that lists its adapters.")
    adapters: dict[str, tuple[bytes, Mapping[str, Any]]] = {}
    for name in sorted(manifest.files):
        weights = folder / name
        if weights.name != WEIGHTS:
            continue
        try:
            config = json.loads(_read(folder, weights.parent / CONFIG, manifest).decode("utf-8"))
            adapter = _alone(folder, manifest) if weights.parent == folder else weights.parent.name
            adapters[adapter] = (b"", adapter_config_for_wire(config))
        except (OSError, ValueError, AttributeError) as error:
            raise SettingsError(f"{name}: its {CONFIG} cannot be read ({error}).") from error
    if not adapters:
        raise SettingsError(f"{MANIFEST} lists no {WEIGHTS}.")
    rank = next(iter(adapters.values()))[1].get("r")
    if type(rank) is not int:
        raise SettingsError(f"its adapters need a LoRA rank, but have {rank!r}.")
    return SavedAdapters(step=manifest.step, lora_rank=rank, adapters=adapters, facts=manifest.facts)


def newest_checkpoint(folder: Path) -> Path:
    """Return a checkpoint's folder as it is, and for a run (see `run_home`) the newest one that is whole.

    Raises:
        SettingsError: No such folder, or the run has no checkpoint that is whole.
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
    """Compare what adapters were trained on with what a server has; returns whether the checkpoint says it at all.

    Args:
        folder: For messages.
        saved: What was read from there.
        server: model_fingerprint, tokenizer_hash and chat_hash.

    Raises:
        SettingsError: Another base model, tokenizer or chat format.
    """
    for name, what in SAME_FACTS.items():
        if name in saved.facts and name in server and saved.facts[name] != server[name]:
            raise SettingsError(
                f"{folder} was trained with another {what}: {saved.facts[name]}, the server has {server[name]}. Take a "
                "checkpoint of a run on this MODEL."
            )
    return saved.facts.keys() >= SAME_FACTS.keys()


def _manifest(folder: Path) -> Manifest | None:
    if not (folder / MANIFEST).exists():
        return None
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        return read_manifest(folder) if data.keys() & {"format", "files"} else None
    except RunFolderError as error:
        raise SettingsError(f"{error} Take another checkpoint.") from error
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"{folder}: {MANIFEST} cannot be read ({error}). Take another checkpoint.") from error


def _weight_files(folder: Path, manifest: Manifest | None) -> dict[str, Path]:
    found = {path.parent.name: path for path in sorted(folder.glob(f"*/{WEIGHTS}"))}
    if found or not (folder / WEIGHTS).is_file():
        return found
    return {_alone(folder, manifest): folder / WEIGHTS}


def _alone(folder: Path, manifest: Manifest | None) -> str:
    names = manifest.facts.get("adapters") if manifest else None
    if not (isinstance(names, list) and len(names) == 1 and names[0] in (*player_names(MAX_PLAYERS), SHARED_ADAPTER)):
        raise SettingsError(
            f"{folder}: which player this adapter is, is unknown: no {MANIFEST} in it says so. Put it into "
            "checkpoint-N/player_0 (N: its optimizer steps), and name checkpoint-N."
        )
    return str(names[0])


def _read(folder: Path, path: Path, manifest: Manifest | None) -> bytes:
    data = path.read_bytes()
    if manifest is not None:
        name = path.relative_to(folder).as_posix()
        entry = manifest.files.get(name)
        if entry is None:
            raise SettingsError(f"{folder}: {name} is not listed in {MANIFEST}. Take another checkpoint.")
        if (sha256 := hashlib.sha256(data).hexdigest()) != entry.sha256:
            raise SettingsError(
                f"{folder}: {name} has sha256 {sha256}, {MANIFEST} says {entry.sha256}. Take another checkpoint."
            )
    return data


def _step(folder: Path) -> int:
    match = CHECKPOINT_NAME.fullmatch(folder.resolve().name)
    try:
        step = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        step = int(match[1]) if match else None
    if type(step) is not int or step < 0:
        raise SettingsError(
            f"--checkpoint {folder}: how many steps it was trained for is unknown; name it checkpoint-N, or give it a "
            'manifest.json with "step".'
        )
    if match and int(match[1]) != step:
        raise SettingsError(f"--checkpoint {folder}: its {MANIFEST} is that of step {step}; which is it?")
    return step
