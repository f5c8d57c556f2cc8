"""The real server with one fault at a time, chosen by the word in the file that `PLANT_FILE` names.

Every receipt, version and stamp stays right; only what is sampled is wrong. Nothing but the
logprobs can tell."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hanabi_grpo.agents.served_model import ServedPlayer
from hanabi_grpo.cli import app
from hanabi_grpo.rollout.loop import Player
from hanabi_grpo.rollout.messages import RequestedTask
from hanabi_grpo.server.engine import VllmSampler
from hanabi_grpo.server.seats import Tables
from hanabi_grpo.settings.refs import is_frozen

FAULTS = {
    "none": "",
    "swapped": "player 0's weights sit under player 1 and the other way round",
    "base": "the base model is sampled, no adapter is attached",
    "skipped": "the commit loads nothing and goes on with the old weights",
    "stale": "player 1's first upload is loaded at every version",
    "cache": "an adapter is reloaded under its old name, so that cached prefixes of the old "
    "version are reused",
    "alpha": "LoRA's alpha is loaded doubled",
}

OVERFLOW = "overflow"
"""Lent adapters are loaded with values so large that they overflow, though each of them is
finite.
"""

PREVIOUS = "previous"
"""Player 1's upload of the version before is loaded at every version."""

_real_load, _real_unload, _real_seat = (
    VllmSampler.load_adapter,
    VllmSampler.unload_adapter,
    Tables.seat,
)
_first: dict[str, str] = {}
_before: dict[str, str] = {}
_handles: dict[str, Any] = {}


def _fault() -> str:
    fault = Path(os.environ["PLANT_FILE"]).read_text().strip()
    return fault if fault in (*FAULTS, OVERFLOW, PREVIOUS) else "none"


async def _load(engine: VllmSampler, name: str, number: int, path: str) -> Any:
    adapter, _, version = name.partition("@")
    fault = _fault()
    if fault == OVERFLOW and is_frozen(name):
        path = _overflowing(path)
    if fault == PREVIOUS and adapter == "player_1":
        uploaded = shutil.copytree(path, f"{path}-uploaded")
        path, _before[adapter] = _before.get(adapter, path), uploaded
    elif version == "0" and not is_frozen(name):
        kept = f"{path}-kept"
        shutil.copytree(path, kept)
        _first[adapter] = kept
    elif fault == "stale" and adapter == "player_1":
        path = _first[adapter]
    elif fault == "skipped":
        return _handles[adapter]
    if fault == "alpha":
        # Loaded from a copy: the store compares the upload's own file with its digest.
        shutil.copytree(path, f"{path}-doubled")
        path = f"{path}-doubled"
        config = Path(path) / "adapter_config.json"
        given = json.loads(config.read_text())
        config.write_text(json.dumps({**given, "lora_alpha": 2 * given["lora_alpha"]}))
    if fault == "cache":
        fixed = Path(path).parent / f"fixed-{adapter}"
        shutil.rmtree(fixed, ignore_errors=True)
        shutil.copytree(path, fixed)
        name, number, path = adapter, 900 + int(adapter.removeprefix("player_")), str(fixed)
        await _real_unload(engine, number)
    _handles[adapter] = await _real_load(engine, name, number, path)
    return _handles[adapter]


def _overflowing(path: str) -> str:
    # Loaded from a copy, as above.
    shutil.copytree(path, f"{path}-huge")
    weights = Path(f"{path}-huge") / "adapter_model.safetensors"
    huge = {name: torch.full_like(one, 1e30) for name, one in load_file(weights).items()}
    save_file(huge, weights)
    return f"{path}-huge"


async def _unload(engine: VllmSampler, number: int) -> None:
    if _fault() not in ("skipped", "cache"):
        await _real_unload(engine, number)


def _seat(tables: Tables, task: RequestedTask) -> list[Player]:
    fault, players = _fault(), _real_seat(tables, task)
    served = [player for player in players if isinstance(player, ServedPlayer) and player.lora]
    loras = [player.lora for player in served]
    if fault == "base":
        loras = [None] * len(loras)
    if fault == "swapped" and len(loras) == 2:
        loras.reverse()
    planted = {
        id(player): replace(player, lora=lora) for player, lora in zip(served, loras, strict=True)
    }
    return [planted.get(id(player), player) for player in players]


if __name__ == "__main__":
    VllmSampler.load_adapter, VllmSampler.unload_adapter, Tables.seat = _load, _unload, _seat
    app(["serve"])
