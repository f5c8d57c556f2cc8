"""An adapter store without vLLM: a sampler that notes what it is asked for, and uploads."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save

from fake_engine import StubSampler
from hanabi_grpo.rollout.handshake import SessionRequest
from hanabi_grpo.rollout.sampler import AdapterHandle
from hanabi_grpo.server.adapter_loader import Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from server_app import make_identity, session_body

SHAPES = {"model.layers.0.self_attn.q_proj": (4, 4)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
PLAYERS = ("player_0", "player_1", "player_2")
A = "a" * 32
"""Id of a trainer."""
B = "b" * 32
"""Id of another trainer."""


class Loads(StubSampler):
    """Keeps what the store asks the engine for; refuses the adapters named in `broken`."""

    def __init__(self) -> None:
        self.loaded: dict[int, str] = {}
        self.broken: set[str] = set()
        self.cannot_unload = False
        self.gate: asyncio.Event | None = None
        """Loading waits for it."""
        self.num_loads = 0

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        assert (Path(path) / "adapter_model.safetensors").is_file()
        self.num_loads += 1
        if self.gate is not None:
            await self.gate.wait()
        if name in self.broken:
            raise RuntimeError("cannot load")
        self.loaded[number] = name
        return f"handle of {name}"

    async def unload_adapter(self, number: int) -> None:
        await asyncio.sleep(0)
        if self.cannot_unload:
            raise RuntimeError("cannot unload")
        del self.loaded[number]

    @property
    def names(self) -> list[str]:
        return sorted(self.loaded.values())


def upload(value: float = 0.0, rank: int = 2) -> bytes:
    """The bytes of a valid adapter whose weights are all `value`."""
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    return save(
        {
            f"{prefix}.lora_A.weight": torch.full((rank, 4), value),
            f"{prefix}.lora_B.weight": torch.full((4, rank), value),
        }
    )


def wanted(run_id: str = "run", trainer_id: str = A, **other: Any) -> SessionRequest:
    """The session request of a trainer of three players."""
    fields = {
        "run_id": run_id,
        "trainer_id": trainer_id,
        "adapters": list(PLAYERS),
        "lora_rank": 2,
    }
    fields.update(other)
    return msgspec.convert(session_body(make_identity(), **fields), SessionRequest)


def sent(name: str, version: int, body: bytes, config: Mapping[str, Any] = CONFIG) -> Upload:
    """An upload with the right digest."""
    digest = hashlib.sha256(body).hexdigest()
    return Upload(adapter=name, version=version, body=body, sha256=digest, config=config)


async def stage(
    store: AdapterStore, name: str, version: int, body: bytes, config: Mapping[str, Any] = CONFIG
) -> None:
    """Upload one adapter."""
    await store.stage(sent(name, version, body, config))


async def push(store: AdapterStore, version: int, value: float = 0.0) -> dict[str, dict[str, Any]]:
    """Upload every player's adapter and commit them; returns the receipts."""
    for name in PLAYERS:
        await stage(store, name, version, upload(value))
    return await store.commit(version)


@dataclass(frozen=True, slots=True)
class Served:
    """Everything of one served adapter that a rollout could notice."""

    version: int
    lora: AdapterHandle | None
    number: int
    files: dict[str, bytes]


def served(store: AdapterStore) -> dict[str, Served]:
    """What a rollout could notice of each served adapter."""
    adapters = {}
    for name, held in store._served.items():
        files = {path.name: path.read_bytes() for path in held.folder.iterdir()}
        adapters[name] = Served(held.version, held.lora, held.number, files)
    return adapters


def folders_on_disk(store: AdapterStore) -> list[str]:
    """Names with version of the adapters that have files."""
    folders = [path for path in store.folder.path.iterdir() if path.is_dir()]
    return sorted(folder.name.rpartition("-")[0] for folder in folders)
