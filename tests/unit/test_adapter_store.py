"""Versions on the server: staged, committed whole or not at all, served, or refused."""

import asyncio
import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import AdapterError, SessionError, VersionError
from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.server import adapter_loader
from hanabi_grpo.server.adapter_loader import MAX_VERSIONS, HeldAdapter
from hanabi_grpo.server.adapter_store import AdapterStore
from store_parts import (
    CONFIG,
    PLAYERS,
    SHAPES,
    A,
    B,
    Loads,
    Served,
    folders_on_disk,
    push,
    sent,
    served,
    stage,
    upload,
    wanted,
)

anyio = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class State:
    """What a refused request must leave as it was."""

    served: dict[str, Served]
    loaded: dict[int, str]
    folders: list[str]


def state_of(store: AdapterStore, engine: Loads) -> State:
    return State(served(store), dict(engine.loaded), folders_on_disk(store))


@anyio
async def test_a_commit_serves_all_players_and_answers_with_receipts(
    store: AdapterStore, engine: Loads
) -> None:
    receipts = await push(store, 1, 1.0)
    assert receipts["player_1"] == {
        "version": 1,
        "sha256": hashlib.sha256(upload(1.0)).hexdigest(),
        "config_sha256": config_digest(CONFIG),
        "lora_name": "player_1@1",
    }
    assert store.versions() == {"player_0": 1, "player_1": 1, "player_2": 1}
    assert folders_on_disk(store) == ["player_0@1", "player_1@1", "player_2@1"]


@anyio
async def test_the_same_push_again_loads_nothing_even_after_a_later_upload(
    store: AdapterStore, engine: Loads
) -> None:
    receipts = await push(store, 1, 1.0)
    assert await push(store, 1, 1.0) == receipts
    for version in range(2, 20):
        await stage(store, "player_0", version, upload(float(version)))
    assert folders_on_disk(store) == ["player_0@1", "player_0@19", "player_1@1", "player_2@1"]
    assert await store.commit(1) == receipts
    assert engine.num_loads == 3
    for name in PLAYERS[1:]:
        await stage(store, name, 19, upload(2.0))
    assert (await store.commit(19))["player_0"]["version"] == 19


@anyio
async def test_a_refused_upload_or_commit_leaves_map_files_and_handles_as_they_were(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 5, 1.0)
    await stage(store, "player_0", 5, upload(1.0))
    before = state_of(store, engine)
    for adapter, version, body, config, message in (
        ("player_0", 6, upload(float("nan")), CONFIG, "not finite"),
        ("player_0", 6, upload(rank=3), CONFIG, r"has shape \(3, 4\), this model needs \(2, 4\)"),
        ("player_0", 6, b"not safetensors at all", CONFIG, "not a readable safetensors file"),
        ("player_0", 6, upload(), {**CONFIG, "r": 8}, "r=8"),
        ("player_9", 6, upload(), CONFIG, "this session trains player_0, player_1, player_2"),
        ("../player_0", 6, upload(), CONFIG, "this session trains"),
        ("player_0", 4, upload(), CONFIG, "player_0@4 is older than the served version 5"),
        ("player_0", 5, upload(7.0), CONFIG, "player_0@5 is already held with a different sha256"),
        (
            "player_0",
            5,
            upload(1.0),
            {**CONFIG, "lora_alpha": 8},
            "player_0@5 is already held with a different PEFT config",
        ),
    ):
        with pytest.raises((AdapterError, VersionError), match=message):
            await stage(store, adapter, version, body, config)
        assert state_of(store, engine) == before, message
        assert store._staged == {}
    with pytest.raises(AdapterError, match="resend it"):
        await store.stage(replace(sent("player_0", 6, upload()), sha256="0" * 64))
    await stage(store, "player_0", 6, upload(2.0))
    await stage(store, "player_1", 7, upload(2.0))
    with pytest.raises(VersionError, match="nothing staged for player_1, player_2"):
        await store.commit(6)
    assert served(store) == before.served


@anyio
@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
async def test_a_full_disk_refuses_the_upload_and_keeps_no_part_of_it(
    store: AdapterStore, engine: Loads, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(store, 1)
    before = state_of(store, engine)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == file:
            write(path, data[:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(
            AdapterError, match=r"cannot be stored in .* \(No space left on device\).*Free space"
        ):
            await stage(store, "player_0", 2, upload(2.0))
    assert state_of(store, engine) == before
    assert store._staged == {}
    await push(store, 2, 2.0)


@anyio
@pytest.mark.parametrize("position", PLAYERS)
async def test_a_failed_load_of_any_player_leaves_the_old_version_of_all_served(
    store: AdapterStore, engine: Loads, position: str
) -> None:
    await push(store, 1)
    before = served(store)
    engine.broken.add(f"{position}@2")
    with pytest.raises(
        AdapterError,
        match="commit of version 2 failed, the old version is still served: cannot load",
    ):
        await push(store, 2, 2.0)
    assert served(store) == before
    assert engine.names == ["player_0@1", "player_1@1", "player_2@1"]
    engine.broken.clear()
    receipts = await store.commit(2)
    assert receipts[position]["version"] == 2, "the staged version can still be committed"
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]


@anyio
@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
async def test_files_that_change_between_upload_and_commit_are_not_served(
    store: AdapterStore, engine: Loads, file: str
) -> None:
    await push(store, 1)
    before = served(store)
    for name in PLAYERS:
        await stage(store, name, 2, upload(2.0))
    changed = {
        "adapter_model.safetensors": upload(3.0),
        "adapter_config.json": json.dumps({**CONFIG, "lora_alpha": 400}).encode(),
    }
    (store._staged["player_2"].folder / file).write_bytes(changed[file])
    with pytest.raises(AdapterError, match="the loaded files are not those that were sent"):
        await store.commit(2)
    assert served(store) == before
    assert engine.names == ["player_0@1", "player_1@1", "player_2@1"]


@anyio
async def test_a_version_in_use_is_kept_until_its_games_end(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    async with store.lease({"player_0": 1, "player_1": 1}) as leased:
        await push(store, 2, 2.0)
        assert engine.names == [
            "player_0@1",
            "player_0@2",
            "player_1@1",
            "player_1@2",
            "player_2@2",
        ]
        assert leased["player_0"].lora == "handle of player_0@1"
        assert leased["player_0"].folder.is_dir()
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]
    assert folders_on_disk(store) == ["player_0@2", "player_1@2", "player_2@2"]
    with pytest.raises(
        VersionError, match="player_0@1 is required, but this server holds player_0@2"
    ):
        async with store.lease({"player_0": 1}):
            pass


@anyio
async def test_files_stay_until_the_engine_has_forgotten_them_when_two_rollouts_end_in_one_moment(
    tmp_path: Path,
) -> None:
    files_at_unload = []

    class SlowToForget(Loads):
        async def unload_adapter(self, number: int) -> None:
            await asyncio.sleep(0.2)
            files_at_unload.append(folders_on_disk(store))
            await super().unload_adapter(number)

    store = AdapterStore(SlowToForget(), max_rank=16, shapes=SHAPES, home=tmp_path)
    await store.open_session(wanted())
    await push(store, 1, 1.0)
    end = asyncio.Event()

    async def play() -> None:
        async with store.lease({"player_0": 1}):
            await end.wait()

    rollouts = [asyncio.ensure_future(play()) for _ in range(2)]
    await asyncio.sleep(0)
    await push(store, 2, 2.0)
    files_at_unload.clear()
    end.set()
    await asyncio.gather(*rollouts)
    second = ["player_0@2", "player_1@2", "player_2@2"]
    assert files_at_unload == [["player_0@1", *second]]
    assert folders_on_disk(store) == second
    store.close()


@anyio
async def test_a_version_too_many_is_refused_while_games_hold_all_the_others(
    store: AdapterStore, engine: Loads
) -> None:
    newest = MAX_VERSIONS
    async with AsyncExitStack() as games:
        for version in range(1, newest):
            await push(store, version, float(version))
            await games.enter_async_context(store.lease({"player_0": version}))
        async with store.lease({"player_0": newest - 1}):
            await push(store, newest, float(newest))
            before = served(store)
            with pytest.raises(
                VersionError,
                match=rf"holds {newest} versions of player_0 \(player_0@1 by 1 rollout\(s\), .*"
                rf"player_0@{newest - 1} by 2 rollout\(s\), "
                rf"player_0@{newest} by 0 rollout\(s\)\), at most {newest} fit",
            ):
                await push(store, newest + 1, 1.5)
            assert served(store) == before
    assert (await store.commit(newest + 1))["player_0"]["version"] == newest + 1
    assert engine.names == [f"{name}@{newest + 1}" for name in PLAYERS]


@anyio
async def test_an_adapter_that_cannot_be_unloaded_costs_neither_the_commit_nor_the_games(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    engine.cannot_unload = True
    async with store.lease({"player_0": 1}):
        await push(store, 2, 2.0)
        assert store.versions() == dict.fromkeys(PLAYERS, 2)
    assert folders_on_disk(store) == ["player_0@2", "player_1@2", "player_2@2"]


@contextmanager
def loading(engine: Loads) -> Iterator[None]:
    """In the block the engine loads nothing; after it, what was asked for meanwhile."""
    engine.gate = asyncio.Event()
    try:
        yield
    finally:
        engine.gate.set()


async def begin_commit(store: AdapterStore, version: int) -> "asyncio.Future[dict[str, Any]]":
    """Stage a version and begin its commit."""
    for name in PLAYERS:
        await stage(store, name, version, upload(float(version)))
    commit = asyncio.ensure_future(store.commit(version))
    await asyncio.sleep(0.01)
    return commit


@anyio
async def test_a_commit_whose_client_disconnects_is_done_whole(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    with loading(engine):
        request = await begin_commit(store, 2)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert store.versions() == dict.fromkeys(PLAYERS, 1)
    assert (await store.commit(2))["player_2"]["version"] == 2
    assert engine.num_loads == 6, "the second commit waited for the first and found its work done"
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]


@anyio
@pytest.mark.parametrize("fails", [False, True])
async def test_an_upload_during_a_commit_is_not_lost_and_of_what_it_replaced_nothing_stays(
    store: AdapterStore, engine: Loads, fails: bool
) -> None:
    if fails:
        engine.broken.add("player_2@1")
    with loading(engine):
        commit = await begin_commit(store, 1)
        await stage(store, "player_0", 2, upload(2.0))
    if fails:
        with pytest.raises(AdapterError, match="cannot load"):
            await commit
        assert folders_on_disk(store) == ["player_0@2", "player_1@1", "player_2@1"]
    else:
        assert (await commit)["player_0"]["version"] == 1
        assert folders_on_disk(store) == ["player_0@1", "player_0@2", "player_1@1", "player_2@1"]
    for name in PLAYERS[1:]:
        await stage(store, name, 2, upload(2.0))
    assert (await store.commit(2))["player_0"]["version"] == 2
    assert folders_on_disk(store) == ["player_0@2", "player_1@2", "player_2@2"]


@anyio
async def test_a_rollout_that_starts_during_a_commit_plays_the_old_versions_of_all_players(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    async with AsyncExitStack() as stack:
        with loading(engine):
            commit = await begin_commit(store, 2)
            leased = await stack.enter_async_context(store.lease(dict.fromkeys(PLAYERS, 1)))
        await commit
        assert {held.name for held in leased.values()} == {"player_0@1", "player_1@1", "player_2@1"}
        assert all(held.folder.is_dir() for held in leased.values())
    assert engine.names == ["player_0@2", "player_1@2", "player_2@2"]


@anyio
async def test_another_run_starts_with_no_versions_and_games_of_the_old_one_go_on(
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


@anyio
async def test_of_two_trainers_that_wait_for_a_commit_one_is_let_in_and_the_old_one_commits_no_more(
    store: AdapterStore, engine: Loads
) -> None:
    for name in PLAYERS:
        await stage(store, name, 1, upload())
    async with store._lock:
        store.ownership.release(session_headers("run", A))
        first = asyncio.ensure_future(store.open_session(wanted("first", B)))
        second = asyncio.ensure_future(store.open_session(wanted("second", "c" * 32)))
        await asyncio.sleep(0)
        commit = asyncio.ensure_future(store.commit(1))
        await asyncio.sleep(0)
    await first
    with pytest.raises(SessionError, match="this server serves run first"):
        await second
    with pytest.raises(SessionError, match="another trainer took over before it began"):
        await commit
    assert (store.versions(), engine.loaded, folders_on_disk(store)) == ({}, {}, [])


# --- while an upload is checked, beside the event loop ---


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The real check of an upload waits for the gate.

    An event loop that ran the check itself could never open it.
    """
    gate = threading.Event()
    check = adapter_loader.check_adapter

    def wait(*args: Any, **options: Any) -> None:
        assert gate.wait(60)
        check(*args, **options)

    monkeypatch.setattr(adapter_loader, "check_adapter", wait)
    yield gate
    gate.set()


async def begin_upload(
    store: AdapterStore, version: int, value: float
) -> "asyncio.Future[HeldAdapter]":
    """Begin an upload of player_0."""
    request = asyncio.ensure_future(store.stage(sent("player_0", version, upload(value))))
    await asyncio.sleep(0.01)
    return request


@anyio
async def test_an_upload_that_another_trainer_overtakes_is_refused_and_leaves_nothing(
    store: AdapterStore, engine: Loads, gate: threading.Event
) -> None:
    late = await begin_upload(store, 1, 1.0)
    store.ownership.release(session_headers("run", A))
    await store.open_session(wanted("another run", B))
    gate.set()
    with pytest.raises(SessionError, match="upload of player_0@1: another trainer took over"):
        await late
    assert (store._staged, folders_on_disk(store)) == ({}, [])


@anyio
async def test_of_two_uploads_of_one_version_that_come_together_one_is_held(
    store: AdapterStore, engine: Loads, gate: threading.Event
) -> None:
    first = await begin_upload(store, 1, 1.0)
    second = await begin_upload(store, 1, 2.0)
    gate.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    [held] = [result for result in results if isinstance(result, HeldAdapter)]
    [refusal] = [result for result in results if isinstance(result, VersionError)]
    assert str(refusal).startswith("player_0@1 is already held with a different sha256")
    assert store._staged == {"player_0": held}
    folders = [path.name for path in store.folder.path.iterdir() if path.is_dir()]
    assert folders == [held.folder.name]


@anyio
async def test_an_upload_whose_client_disconnects_is_staged_whole(
    store: AdapterStore, engine: Loads, gate: threading.Event
) -> None:
    request = await begin_upload(store, 1, 1.0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert store._staged == {}
    gate.set()
    await asyncio.gather(*store._loader._tasks)
    staged = store._staged["player_0"].folder / "adapter_model.safetensors"
    assert staged.read_bytes() == upload(1.0)


@anyio
async def test_the_version_that_is_served_meanwhile_bounds_an_upload_that_began_before(
    store: AdapterStore, engine: Loads, gate: threading.Event
) -> None:
    old = await begin_upload(store, 1, 1.0)
    for name in PLAYERS:
        store._staged[name] = await store._loader.write(sent(name, 2, upload(2.0)))
    await store.commit(2)
    async with store.lease({"player_0": 2}):
        assert not old.done(), "games start and end while an upload is checked"
    gate.set()
    with pytest.raises(VersionError, match="player_0@1 is older than the served version 2"):
        await old
    assert folders_on_disk(store) == [f"{name}@2" for name in PLAYERS]


@anyio
async def test_each_adapter_of_a_session_has_the_rank_that_was_agreed_on(engine: Loads) -> None:
    store = AdapterStore(engine, max_rank=4, shapes=SHAPES, session_timeout=60.0)
    request = wanted(lora_rank=4, lora_ranks={"player_1": 2})
    await store.open_session(request)
    large = {**CONFIG, "r": 4}
    await stage(store, "player_0", 1, upload(rank=4), large)
    await stage(store, "player_1", 1, upload(rank=2))
    with pytest.raises(AdapterError, match=r"player_1@2: PEFT config: r=4; .* LoRA rank 2\."):
        await stage(store, "player_1", 2, upload(rank=4), large)
    with pytest.raises(AdapterError, match=r"player_2@1: PEFT config: r=2; .* LoRA rank 4\."):
        await stage(store, "player_2", 1, upload(rank=2))
    # What such a session pushed is not served on for one with other ranks.
    assert store.ownership.current().serves_the_same(request)
    assert not store.ownership.current().serves_the_same(wanted(lora_rank=4))
    store.close()
