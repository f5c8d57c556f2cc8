"""Versions on the server: staged, committed, leased, refused."""

import asyncio
import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from hanabi_grpo.errors import AdapterError, VersionError
from hanabi_grpo.server.adapter_store import AdapterStore, remove_leftovers

SHAPES = {"model.layers.0.self_attn.q_proj": (4, 4)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}


class _Loads:
    """Keeps what the store asks the engine for; refuses the adapters named in `broken`."""

    def __init__(self) -> None:
        self.loaded: dict[int, str] = {}
        self.broken: set[str] = set()

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        assert (Path(path) / "adapter_model.safetensors").is_file()
        if name in self.broken:
            raise RuntimeError("cannot load")
        self.loaded[number] = name
        return f"handle of {name}"

    async def unload_adapter(self, number: int) -> None:
        del self.loaded[number]


def _bytes(value: float = 0.0, rank: int = 2, **extra: Any) -> bytes:
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{prefix}.lora_A.weight": torch.full((rank, 4), value),
        f"{prefix}.lora_B.weight": torch.full((4, rank), value),
    }
    return save({**tensors, **extra})


def _stage(store: AdapterStore, name: str, version: int, body: bytes) -> None:
    store.stage(name, version, body, hashlib.sha256(body).hexdigest(), CONFIG)


async def _store(engine: _Loads) -> AdapterStore:
    store = AdapterStore(engine, max_rank=16, shapes=SHAPES)
    await store.open_session("run", ["player_0", "player_1"], 2)
    return store


async def _push(store: AdapterStore, version: int, value: float = 0.0) -> dict[str, dict[str, Any]]:
    for name in ("player_0", "player_1"):
        _stage(store, name, version, _bytes(value))
    return await store.commit(version)


def test_a_commit_serves_all_players_and_answers_with_receipts() -> None:
    async def scenario() -> None:
        engine = _Loads()
        store = await _store(engine)
        receipts = await _push(store, 1, 1.0)
        digest = hashlib.sha256(_bytes(1.0)).hexdigest()
        assert receipts["player_1"] == {"version": 1, "sha256": digest, "lora_name": "player_1@1"}
        assert store.versions() == {"player_0": 1, "player_1": 1}
        assert await store.commit(1) == receipts, "the same commit again is harmless"
        store.close()

    asyncio.run(scenario())


def test_a_commit_with_a_missing_player_serves_nothing_new() -> None:
    async def scenario() -> None:
        store = await _store(_Loads())
        await _push(store, 1)
        _stage(store, "player_0", 2, _bytes(2.0))
        with pytest.raises(VersionError, match="nothing staged for player_1"):
            await store.commit(2)
        assert store.versions() == {"player_0": 1, "player_1": 1}
        store.close()

    asyncio.run(scenario())


def test_a_failed_load_leaves_the_old_version_served() -> None:
    async def scenario() -> None:
        engine = _Loads()
        store = await _store(engine)
        await _push(store, 1)
        engine.broken.add("player_1@2")
        with pytest.raises(AdapterError, match="commit of version 2 failed, the old version stays served"):
            await _push(store, 2, 2.0)
        assert store.versions() == {"player_0": 1, "player_1": 1}
        assert sorted(engine.loaded.values()) == ["player_0@1", "player_1@1"]
        store.close()

    asyncio.run(scenario())


def test_older_versions_and_other_bytes_are_refused_and_the_same_bytes_are_not() -> None:
    async def scenario() -> None:
        store = await _store(_Loads())
        await _push(store, 5, 1.0)
        _stage(store, "player_0", 5, _bytes(1.0))
        with pytest.raises(VersionError, match="older than the served version 5"):
            _stage(store, "player_0", 4, _bytes(3.0))
        with pytest.raises(VersionError, match="held with other bytes"):
            _stage(store, "player_0", 5, _bytes(9.0))
        store.close()

    asyncio.run(scenario())


def test_a_version_in_use_is_kept_until_its_games_end() -> None:
    async def scenario() -> None:
        engine = _Loads()
        store = await _store(engine)
        await _push(store, 1)
        async with store.lease({"player_0": 1, "player_1": 1}) as leased:
            await _push(store, 2, 2.0)
            assert sorted(engine.loaded.values()) == ["player_0@1", "player_0@2", "player_1@1", "player_1@2"]
            assert leased["player_0"].lora == "handle of player_0@1"
        assert sorted(engine.loaded.values()) == ["player_0@2", "player_1@2"]
        with pytest.raises(VersionError, match="player_0@1 is required, but this server holds player_0@2"):
            async with store.lease({"player_0": 1}):
                pass
        store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "config", "message"),
    [
        (_bytes(float("nan")), CONFIG, "not finite"),
        (_bytes(rank=3), CONFIG, r"has shape \(3, 4\), this model needs \(2, 4\)"),
        (_bytes(other=torch.zeros(2, 2)), CONFIG, "'other'"),
        (save({}), CONFIG, "0 tensors, the base model needs 2"),
        (b"not safetensors at all", CONFIG, "not a safetensors file"),
        (_bytes(), {**CONFIG, "r": 8}, "r=8"),
        (_bytes(), {**CONFIG, "base_model_name_or_path": "/etc"}, "base_model_name_or_path"),
    ],
)
def test_an_upload_that_must_not_be_loaded_is_refused(body: bytes, config: dict[str, Any], message: str) -> None:
    async def scenario() -> None:
        store = await _store(_Loads())
        with pytest.raises(AdapterError, match=message):
            store.stage("player_0", 1, body, hashlib.sha256(body).hexdigest(), config)
        assert store.versions() == {}
        store.close()

    asyncio.run(scenario())


def test_another_run_a_wrong_digest_an_unknown_player_and_a_header_bomb_are_refused() -> None:
    async def scenario() -> None:
        store = await _store(_Loads())
        store.check_run("run")
        with pytest.raises(VersionError, match="run other is not the one that this server works for"):
            store.check_run("other")
        with pytest.raises(AdapterError, match="resend it"):
            store.stage("player_0", 1, _bytes(), "0" * 64, CONFIG)
        with pytest.raises(AdapterError, match="this session trains player_0, player_1"):
            _stage(store, "../player_0", 1, _bytes())
        bomb = struct.pack("<Q", 2**62) + b"{}"
        with pytest.raises(AdapterError, match="its header does not fit"):
            _stage(store, "player_0", 1, bomb)
        store.close()

    asyncio.run(scenario())


def test_another_run_starts_with_no_versions() -> None:
    async def scenario() -> None:
        engine = _Loads()
        store = await _store(engine)
        await _push(store, 7)
        await store.open_session("another run", ["shared"], 2)
        assert store.versions() == {}
        assert engine.loaded == {}
        with pytest.raises(AdapterError, match="LORA_RANK=32: this server was started with LORA_RANK=16"):
            await store.open_session("third", ["shared"], 32)
        store.close()

    asyncio.run(scenario())


def test_folders_of_dead_servers_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    dead, living, strange = (
        tmp_path / f"hanabi-adapters-{owner}-x" for owner in ("999999999", str(os.getpid()), "somebody")
    )
    for folder in (dead, living, strange):
        folder.mkdir()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, strange.name])
