"""Commits that fail, are hung up on, or meet rollouts, uploads and other trainers: never half of one."""

import asyncio
import json

import pytest

from hanabi_grpo.errors import AdapterError, SessionError, VersionError
from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.server.adapter_store import AdapterStore
from store_parts import CONFIG, PLAYERS, A, B, Loads, folders_on_disk, push, served, stage, upload, wanted

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("position", PLAYERS)
async def test_a_failed_load_of_any_player_leaves_the_old_version_of_all_served(
    store: AdapterStore, engine: Loads, position: str
) -> None:
    await push(store, 1)
    before = served(store)
    engine.broken.add(f"{position}@2")
    with pytest.raises(AdapterError, match="commit of version 2 failed, the old version stays served: cannot load"):
        await push(store, 2, 2.0)
    assert served(store) == before
    assert engine.names == ["player_0@1", "player_1@1", "player_2@1"]
    engine.broken.clear()
    assert (await store.commit(2))[position]["version"] == 2, "the staged version can still be committed"
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
async def test_files_that_change_between_upload_and_commit_are_not_served(
    store: AdapterStore, engine: Loads, file: str
) -> None:
    await push(store, 1)
    before = served(store)
    for name in PLAYERS:
        await stage(store, name, 2, upload(2.0))
    path = store._staged["player_2"].folder / file
    path.write_bytes(upload(3.0) if file.endswith("tensors") else json.dumps({**CONFIG, "lora_alpha": 400}).encode())
    with pytest.raises(AdapterError, match="the files that were loaded are not those that were sent"):
        await store.commit(2)
    assert served(store) == before
    assert engine.names == ["player_0@1", "player_1@1", "player_2@1"]


async def test_a_version_in_use_is_kept_until_its_games_end(store: AdapterStore, engine: Loads) -> None:
    await push(store, 1)
    async with store.lease({"player_0": 1, "player_1": 1}) as leased:
        await push(store, 2, 2.0)
        assert engine.names == ["player_0@1", "player_0@2", "player_1@1", "player_1@2", "player_2@2"]
        assert leased["player_0"].lora == "handle of player_0@1"
        assert leased["player_0"].folder.is_dir()
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]
    assert folders_on_disk(store) == ["player_0@2", "player_1@2", "player_2@2"]
    with pytest.raises(VersionError, match="player_0@1 is required, but this server holds player_0@2"):
        async with store.lease({"player_0": 1}):
            pass


async def test_a_fourth_version_is_refused_while_games_hold_three(store: AdapterStore, engine: Loads) -> None:
    await push(store, 1, 1.0)
    async with store.lease({"player_0": 1}):
        await push(store, 2, 2.0)
        async with store.lease({"player_0": 2}), store.lease({"player_0": 2}):
            await push(store, 3, 3.0)
            before = served(store)
            with pytest.raises(
                VersionError,
                match=r"holds 3 versions of player_0 \(player_0@1 by 1 rollout\(s\), player_0@2 by 2 rollout\(s\), "
                r"player_0@3 by 0 rollout\(s\)\), at most 3 fit",
            ):
                await push(store, 4, 4.0)
            assert served(store) == before
        assert (await store.commit(4))["player_0"]["version"] == 4
    assert engine.names == ["player_0@4", "player_1@4", "player_2@4"]


async def test_an_adapter_that_cannot_be_unloaded_costs_neither_the_commit_nor_the_games(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    engine.cannot_unload = True
    async with store.lease({"player_0": 1}):
        await push(store, 2, 2.0)
        assert store.versions() == dict.fromkeys(PLAYERS, 2)
    assert folders_on_disk(store) == ["player_0@2", "player_1@2", "player_2@2"]
    engine.broken.add("player_1@3")
    with pytest.raises(AdapterError, match="cannot load"):
        await push(store, 3, 3.0)
    assert store.versions() == dict.fromkeys(PLAYERS, 2)


async def test_a_commit_whose_client_hangs_up_is_done_whole(store: AdapterStore, engine: Loads) -> None:
    await push(store, 1)
    engine.gate = asyncio.Event()
    for name in PLAYERS:
        await stage(store, name, 2, upload(2.0))
    request = asyncio.ensure_future(store.commit(2))
    await asyncio.sleep(0.01)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert store.versions() == dict.fromkeys(PLAYERS, 1)
    engine.gate.set()
    assert (await store.commit(2))["player_2"]["version"] == 2
    assert engine.num_loads == 6, "the second commit waited for the first and found its work done"
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]


async def test_an_upload_during_a_commit_is_not_lost(store: AdapterStore, engine: Loads) -> None:
    engine.gate = asyncio.Event()
    for name in PLAYERS:
        await stage(store, name, 1, upload())
    commit = asyncio.ensure_future(store.commit(1))
    await asyncio.sleep(0.01)
    for name in PLAYERS:
        await stage(store, name, 2, upload(2.0))
    engine.gate.set()
    assert (await commit)["player_0"]["version"] == 1
    assert [name for name in folders_on_disk(store) if name.endswith("@1")] == [
        "player_0@1",
        "player_1@1",
        "player_2@1",
    ]
    assert (await store.commit(2))["player_0"]["version"] == 2
    assert folders_on_disk(store) == ["player_0@2", "player_1@2", "player_2@2"]


async def test_a_failed_commit_leaves_no_files_of_what_an_upload_replaced_meanwhile(
    store: AdapterStore, engine: Loads
) -> None:
    engine.gate = asyncio.Event()
    engine.broken.add("player_2@1")
    for name in PLAYERS:
        await stage(store, name, 1, upload())
    commit = asyncio.ensure_future(store.commit(1))
    await asyncio.sleep(0.01)
    await stage(store, "player_0", 2, upload(2.0))
    engine.gate.set()
    with pytest.raises(AdapterError, match="cannot load"):
        await commit
    assert folders_on_disk(store) == ["player_0@2", "player_1@1", "player_2@1"]


async def test_a_rollout_that_starts_during_a_commit_plays_the_old_versions_of_all_players(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    engine.gate = asyncio.Event()
    for name in PLAYERS:
        await stage(store, name, 2, upload(2.0))
    commit = asyncio.ensure_future(store.commit(2))
    await asyncio.sleep(0.01)
    async with store.lease(None) as leased:
        engine.gate.set()
        await commit
        assert {held.name for held in leased.values()} == {"player_0@1", "player_1@1", "player_2@1"}
        assert all(held.folder.is_dir() for held in leased.values())
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]


async def test_another_run_starts_with_no_versions_and_games_of_the_old_one_end_in_peace(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 7)
    async with store.lease({"player_0": 7}) as leased:
        store.ownership.release(session_headers("run", A))
        await store.open_session(wanted("another run", B, adapters=["shared"]))
        assert store.versions() == {}
        assert engine.names == ["player_0@7"]
        assert leased["player_0"].folder.is_dir()
    assert engine.loaded == {}
    assert folders_on_disk(store) == []


async def test_a_commit_that_waits_while_another_trainer_takes_over_does_nothing(
    store: AdapterStore, engine: Loads
) -> None:
    for name in PLAYERS:
        await stage(store, name, 1, upload())
    async with store._lock:
        store.ownership.release(session_headers("run", A))
        opening = asyncio.ensure_future(store.open_session(wanted("another run", B)))
        await asyncio.sleep(0)
        commit = asyncio.ensure_future(store.commit(1))
        await asyncio.sleep(0)
    await opening
    with pytest.raises(SessionError, match="another trainer took over before it began"):
        await commit
    assert (store.versions(), engine.loaded, folders_on_disk(store)) == ({}, {}, [])


async def test_of_two_trainers_that_wait_for_a_commit_only_the_first_is_let_in(
    store: AdapterStore, engine: Loads
) -> None:
    store.ownership.release(session_headers("run", A))
    async with store._lock:
        first = asyncio.ensure_future(store.open_session(wanted("first", A)))
        second = asyncio.ensure_future(store.open_session(wanted("second", B)))
        await asyncio.sleep(0)
    await first
    with pytest.raises(SessionError, match="this server works for run first"):
        await second
