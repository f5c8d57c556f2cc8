"""The real server with one fault at a time, chosen by the word in the file that `PLANT_FILE` names.

Every receipt, version and stamp stays right; only what is sampled is wrong. Nothing but the
logprobs can tell.
"""

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
    "cache": (
        "an adapter is reloaded under its old name, so that cached prefixes of the old version "
        "are reused"
    ),
    "alpha": "LoRA's alpha is loaded doubled",
}
"""Each fault and its description in the table of injections."""

OVERFLOW = "overflow"
"""Guest adapters are loaded with values so large that they overflow, though each is finite."""

PREVIOUS = "previous"
"""Player 1's upload of the version before is loaded at every version."""

HUGE = 1e30
"""A finite value whose products overflow."""
FIRST_FIXED_NUMBER = 900
"""Ids of adapters that keep their name; ids of the server's own are smaller."""

_real_load = VllmSampler.load_adapter
_real_unload = VllmSampler.unload_adapter
_real_seat = Tables.seat
_first_uploads: dict[str, str] = {}
"""Copies of the uploads of version 0, by adapter."""
_previous_uploads: dict[str, str] = {}
"""Copies of the uploads of the version before, by adapter."""
_handles: dict[str, Any] = {}
"""What the engine returned for the newest load of each adapter."""


def planted_fault() -> str:
    """Return the fault that is planted now."""
    fault = Path(os.environ["PLANT_FILE"]).read_text().strip()
    if fault in FAULTS or fault in (OVERFLOW, PREVIOUS):
        return fault
    return "none"


async def load_adapter(engine: VllmSampler, name: str, number: int, path: str) -> Any:
    """Load an adapter with the planted fault; takes what `VllmSampler.load_adapter` takes.

    Files are changed in copies: the store compares the upload's own files with their digests.

    Args:
        engine: The engine.
        name: Adapter and version, e.g. "player_0@3".
        number: The engine's id for it.
        path: The folder of the upload.
    """
    adapter, _, version = name.partition("@")
    fault = planted_fault()
    if fault == OVERFLOW and is_frozen(name):
        path = _with_huge_values(path)
    if fault == PREVIOUS and adapter == "player_1":
        upload = _copy(path, "uploaded")
        path = _previous_uploads.get(adapter, path)
        _previous_uploads[adapter] = upload
    elif version == "0" and not is_frozen(name):
        _first_uploads[adapter] = _copy(path, "kept")
    elif fault == "stale" and adapter == "player_1":
        path = _first_uploads[adapter]
    elif fault == "skipped":
        return _handles[adapter]
    if fault == "alpha":
        path = _with_doubled_alpha(path)
    if fault == "cache":
        folder = Path(path).parent / f"fixed-{adapter}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(path, folder)
        path = str(folder)
        name = adapter
        number = FIRST_FIXED_NUMBER + int(adapter.removeprefix("player_"))
        await _real_unload(engine, number)
    _handles[adapter] = await _real_load(engine, name, number, path)
    return _handles[adapter]


def _copy(path: str, suffix: str) -> str:
    """Copy an upload beside itself and return the copy's folder."""
    return shutil.copytree(path, f"{path}-{suffix}")


def _with_doubled_alpha(path: str) -> str:
    """Return a copy of an upload whose LoRA alpha is doubled."""
    copy = _copy(path, "doubled")
    file = Path(copy) / "adapter_config.json"
    config = json.loads(file.read_text())
    config["lora_alpha"] *= 2
    file.write_text(json.dumps(config))
    return copy


def _with_huge_values(path: str) -> str:
    """Return a copy of an upload all of whose values are huge."""
    copy = _copy(path, "huge")
    file = Path(copy) / "adapter_model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        tensors[name] = torch.full_like(tensor, HUGE)
    save_file(tensors, file)
    return copy


async def unload_adapter(engine: VllmSampler, number: int) -> None:
    """Unload an adapter, unless the planted fault still needs it."""
    if planted_fault() not in ("skipped", "cache"):
        await _real_unload(engine, number)


def seat_players(tables: Tables, task: RequestedTask) -> list[Player]:
    """Return the players of a task with the adapters that the planted fault gives them."""
    players = _real_seat(tables, task)
    with_adapter = []
    for index, player in enumerate(players):
        if isinstance(player, ServedPlayer) and player.lora:
            with_adapter.append(index)
    adapters = [players[index].lora for index in with_adapter]
    fault = planted_fault()
    if fault == "base":
        adapters = [None] * len(adapters)
    if fault == "swapped" and len(adapters) == 2:
        adapters.reverse()
    seated = list(players)
    for index, lora in zip(with_adapter, adapters, strict=True):
        seated[index] = replace(players[index], lora=lora)
    return seated


if __name__ == "__main__":
    VllmSampler.load_adapter = load_adapter
    VllmSampler.unload_adapter = unload_adapter
    Tables.seat = seat_players
    app(["serve"])
