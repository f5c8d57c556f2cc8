"""Adapters of a checkpoint folder, as they are pushed to a rollout server."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.adapter_config import adapter_config_for_wire
from hanabi_grpo.errors import SettingsError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapters:
    """Every adapter of one checkpoint."""

    step: int
    """Optimizer steps behind the weights."""
    lora_rank: int
    adapters: Mapping[str, tuple[bytes, Mapping[str, Any]]]
    """Name to safetensors bytes and PEFT configuration, names ascending."""


def read_adapters(folder: Path) -> SavedAdapters:
    """Read `checkpoint-N/<adapter>/{adapter_config.json,adapter_model.safetensors}`.

    Raises:
        SettingsError: No such folder, no adapters in it, adapters of several ranks, or no step number.
    """
    if not folder.is_dir():
        raise SettingsError(f"--checkpoint {folder}: no such folder; give a run's checkpoint-N.")
    adapters: dict[str, tuple[bytes, Mapping[str, Any]]] = {}
    for weights in sorted(folder.glob(f"*/{WEIGHTS}")):
        try:
            config = json.loads((weights.parent / CONFIG).read_text(encoding="utf-8"))
            adapters[weights.parent.name] = (weights.read_bytes(), adapter_config_for_wire(config))
        except (OSError, ValueError, AttributeError) as error:
            raise SettingsError(f"{weights.parent}: cannot be read as a PEFT adapter ({error}).") from error
    if not adapters:
        raise SettingsError(f"--checkpoint {folder}: no */{WEIGHTS} in it; give a run's checkpoint-N.")
    ranks = {name: config.get("r") for name, (_, config) in adapters.items()}
    rank = next(iter(ranks.values()))
    if type(rank) is not int or len(set(ranks.values())) != 1:
        raise SettingsError(f"--checkpoint {folder}: its adapters need one LoRA rank, but have {ranks}.")
    return SavedAdapters(step=_step(folder), lora_rank=rank, adapters=adapters)


def _step(folder: Path) -> int:
    match = re.fullmatch(r"checkpoint-(\d+)", folder.resolve().name)
    if match:
        return int(match[1])
    try:
        step = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        step = None
    if type(step) is not int or step < 0:
        raise SettingsError(
            f"--checkpoint {folder}: how many steps it was trained for is unknown; name it checkpoint-N, or give it a "
            'manifest.json with "step".'
        )
    return step
