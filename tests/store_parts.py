"""An adapter store without vLLM: an engine that notes what it is asked for, uploads, and what a
rollout could see.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save

from hanabi_grpo.rollout.handshake import SessionRequest
from hanabi_grpo.server.adapter_loader import Upload
from hanabi_grpo.server.adapter_store import AdapterStore
from server_app import make_identity, session_body

SHAPES = {"model.layers.0.self_attn.q_proj": (4, 4)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
PLAYERS = ("player_0", "player_1", "player_2")
A, B = "a" * 32, "b" * 32


class Loads:
    """Keeps what the store asks the engine for; refuses the adapters named in `broken`."""

    def __init__(self) -> None:
        self.loaded: dict[int, str] = {}
        self.broken: set[str] = set()
        self.cannot_unload = False
        self.gate: asyncio.Event | None = None
        """Loading waits for it."""
        self.num_loads = 0

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
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
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    down, up = torch.full((rank, 4), value), torch.full((4, rank), value)
    return save({f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up})


def wanted(run_id: str = "run", trainer_id: str = A, **other: Any) -> SessionRequest:
    given = {"run_id": run_id, "trainer_id": trainer_id, "adapters": list(PLAYERS), "lora_rank": 2}
    return msgspec.convert(session_body(make_identity(), **{**given, **other}), SessionRequest)


def sent(name: str, version: int, body: bytes, config: Mapping[str, Any] = CONFIG) -> Upload:
    sha256 = hashlib.sha256(body).hexdigest()
    return Upload(adapter=name, version=version, body=body, sha256=sha256, config=config)


async def stage(
    store: AdapterStore, name: str, version: int, body: bytes, config: Mapping[str, Any] = CONFIG
) -> None:
    await store.stage(sent(name, version, body, config))


async def push(store: AdapterStore, version: int, value: float = 0.0) -> dict[str, dict[str, Any]]:
    for name in PLAYERS:
        await stage(store, name, version, upload(value))
    return await store.commit(version)


def served(store: AdapterStore) -> dict[str, Any]:
    """Everything that a rollout could notice: names, handles and the bytes of every file."""
    return {
        name: (
            held.version,
            held.lora,
            held.number,
            {path.name: path.read_bytes() for path in held.folder.iterdir()},
        )
        for name, held in store._served.items()
    }


def folders_on_disk(store: AdapterStore) -> list[str]:
    return sorted(
        path.name.rpartition("-")[0] for path in store.folder.path.iterdir() if path.is_dir()
    )
