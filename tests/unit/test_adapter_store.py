"""Versions on the server: staged, committed, served or refused, and nothing changed by what is refused."""

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hanabi_grpo.errors import AdapterError, VersionError
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.server.adapter_store import AdapterStore
from store_parts import CONFIG, PLAYERS, Loads, folders_on_disk, push, sent, served, stage, upload

pytestmark = pytest.mark.anyio


async def test_a_commit_serves_all_players_and_answers_with_receipts(store: AdapterStore, engine: Loads) -> None:
    receipts = await push(store, 1, 1.0)
    assert receipts["player_1"] == {
        "version": 1,
        "sha256": hashlib.sha256(upload(1.0)).hexdigest(),
        "config_sha256": config_digest(CONFIG),
        "lora_name": "player_1@1",
    }
    assert store.versions() == {"player_0": 1, "player_1": 1, "player_2": 1}
    assert folders_on_disk(store) == ["player_0@1", "player_1@1", "player_2@1"]


async def test_the_same_push_again_loads_nothing_even_after_a_later_upload(store: AdapterStore, engine: Loads) -> None:
    receipts = await push(store, 1, 1.0)
    assert await push(store, 1, 1.0) == receipts
    await stage(store, "player_0", 2, upload(2.0))
    assert await store.commit(1) == receipts
    assert engine.num_loads == 3
    assert store.versions() == dict.fromkeys(PLAYERS, 1)
    for name in PLAYERS[1:]:
        await stage(store, name, 2, upload(2.0))
    assert (await store.commit(2))["player_0"]["version"] == 2


async def test_a_staged_upload_replaces_the_one_before_it_on_disk(store: AdapterStore, engine: Loads) -> None:
    for version in range(1, 20):
        await stage(store, "player_0", version, upload(float(version)))
    assert folders_on_disk(store) == ["player_0@19"]


async def test_a_commit_with_a_missing_player_serves_nothing_new(store: AdapterStore, engine: Loads) -> None:
    await push(store, 1)
    await stage(store, "player_0", 2, upload(2.0))
    await stage(store, "player_1", 3, upload(2.0))
    before = served(store)
    with pytest.raises(VersionError, match="nothing staged for player_1, player_2"):
        await store.commit(2)
    assert served(store) == before


async def test_older_versions_other_bytes_and_another_config_are_refused_and_the_same_are_not(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 5, 1.0)
    before = served(store)
    await stage(store, "player_0", 5, upload(1.0))
    with pytest.raises(VersionError, match="older than the served version 5"):
        await stage(store, "player_0", 4, upload(3.0))
    with pytest.raises(VersionError, match="player_0@5 is held with other bytes"):
        await stage(store, "player_0", 5, upload(9.0))
    with pytest.raises(VersionError, match="player_0@5 is held with other PEFT config"):
        await stage(store, "player_0", 5, upload(1.0), {**CONFIG, "lora_alpha": 8})
    assert served(store) == before


async def test_a_refused_upload_leaves_map_files_and_handles_as_they_were(store: AdapterStore, engine: Loads) -> None:
    await push(store, 1, 1.0)
    before, loaded, folders = served(store), dict(engine.loaded), folders_on_disk(store)
    for adapter, version, body, config, message in (
        ("player_0", 2, upload(float("nan")), CONFIG, "not finite"),
        ("player_0", 2, upload(rank=3), CONFIG, r"has shape \(3, 4\), this model needs \(2, 4\)"),
        ("player_0", 2, b"not safetensors at all", CONFIG, "not a safetensors file"),
        ("player_0", 2, upload(), {**CONFIG, "r": 8}, "r=8"),
        ("player_9", 2, upload(), CONFIG, "this session trains player_0, player_1, player_2"),
        ("../player_0", 2, upload(), CONFIG, "this session trains"),
        ("player_0", 0, upload(), CONFIG, "older than the served version 1"),
        ("player_0", 1, upload(7.0), CONFIG, "held with other bytes"),
    ):
        with pytest.raises((AdapterError, VersionError), match=message):
            await stage(store, adapter, version, body, config)
        after = (served(store), engine.loaded, folders_on_disk(store), store._staged)
        assert after == (before, loaded, folders, {}), message
    with pytest.raises(AdapterError, match="resend it"):
        await store.stage(replace(sent("player_0", 2, upload()), sha256="0" * 64))
    async with store.lease({"player_0": 1}) as leased:
        assert leased["player_0"].lora == "handle of player_0@1"


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
async def test_a_full_disk_refuses_the_upload_and_keeps_no_part_of_it(
    store: AdapterStore, engine: Loads, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(store, 1)
    before, folders = served(store), folders_on_disk(store)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == file:
            write(path, data[:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(AdapterError, match=r"cannot be kept in .* \(No space left on device\).*Free space"):
            await stage(store, "player_0", 2, upload(2.0))
    assert (served(store), folders_on_disk(store), store._staged) == (before, folders, {})
    await push(store, 2, 2.0)
