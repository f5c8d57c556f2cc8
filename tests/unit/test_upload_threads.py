"""Uploads are checked beside the event loop, and nothing that happens meanwhile leaves half of one."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hanabi_grpo.errors import SessionError, VersionError
from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.server import adapter_loader
from hanabi_grpo.server.adapter_loader import HeldAdapter
from hanabi_grpo.server.adapter_store import AdapterStore
from store_parts import PLAYERS, A, B, Loads, folders_on_disk, push, sent, upload, wanted

pytestmark = pytest.mark.anyio


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make the real check of an upload wait, so that an event loop that ran it could never open the gate."""
    gate, check = threading.Event(), adapter_loader.check_adapter

    def wait(*args: Any, **options: Any) -> None:
        assert gate.wait(60)
        check(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(adapter_loader, "check_adapter", wait)
        try:
            yield gate
        finally:
            gate.set()


def stage(store: AdapterStore, version: int, value: float) -> "asyncio.Future[HeldAdapter]":
    """Begin an upload of player_0."""
    return asyncio.ensure_future(store.stage(sent("player_0", version, upload(value))))


async def test_games_start_and_end_while_an_upload_is_checked(
    store: AdapterStore, engine: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(store, 1)
    with held_up(monkeypatch) as gate:
        upload_of_2 = stage(store, 2, 2.0)
        async with store.lease({"player_0": 1}) as leased:
            assert leased["player_0"].lora == "handle of player_0@1"
        assert not upload_of_2.done()
        gate.set()
        assert (await upload_of_2).name == "player_0@2"


async def test_an_upload_that_another_trainer_overtakes_is_refused_and_leaves_nothing(
    store: AdapterStore, engine: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(monkeypatch) as gate:
        late = stage(store, 1, 1.0)
        await asyncio.sleep(0.01)
        store.ownership.release(session_headers("run", A))
        await store.open_session(wanted("another run", B))
        gate.set()
        with pytest.raises(SessionError, match="upload of player_0@1: another trainer took over"):
            await late
    assert (store._staged, folders_on_disk(store)) == ({}, [])


async def test_of_two_uploads_of_one_version_that_come_together_one_is_held(
    store: AdapterStore, engine: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(monkeypatch) as gate:
        both = [stage(store, 1, 1.0), stage(store, 1, 2.0)]
        await asyncio.sleep(0.01)
        gate.set()
        done = await asyncio.gather(*both, return_exceptions=True)
    (held,) = [one for one in done if isinstance(one, HeldAdapter)]
    (refused,) = [one for one in done if isinstance(one, VersionError)]
    assert str(refused).startswith("player_0@1 is held with other bytes")
    assert store._staged == {"player_0": held}
    assert [path.name for path in store.folder.path.iterdir() if path.is_dir()] == [held.folder.name]


async def test_an_upload_whose_client_hangs_up_is_staged_whole(
    store: AdapterStore, engine: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(monkeypatch) as gate:
        request = stage(store, 1, 1.0)
        await asyncio.sleep(0.01)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert store._staged == {}
        gate.set()
        await asyncio.gather(*store._loader._tasks)
    assert (store._staged["player_0"].folder / "adapter_model.safetensors").read_bytes() == upload(1.0)


async def test_the_version_that_is_served_meanwhile_bounds_an_upload_that_began_before(
    store: AdapterStore, engine: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_up(monkeypatch) as gate:
        old = stage(store, 1, 1.0)
        await asyncio.sleep(0.01)
        for name in PLAYERS:
            store._staged[name] = await store._loader.write(sent(name, 2, upload(2.0)))
        await store.commit(2)
        gate.set()
        with pytest.raises(VersionError, match="player_0@1 is older than the served version 2"):
            await old
    assert folders_on_disk(store) == [f"{name}@2" for name in PLAYERS]
