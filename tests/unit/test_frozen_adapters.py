"""Guest adapters: held once, bounded, dropped only when unused, and apart from every session."""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from hanabi_grpo.errors import AdapterError, BusyError, HanabiGrpoError, VersionError
from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.server.adapter_loader import MAX_FROZEN, MAX_PROBES, MAX_VERSIONS, HeldAdapter
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import engine_options
from hanabi_grpo.server.frozen_adapters import RESERVED
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import seat_adapter
from store_parts import (
    CONFIG,
    PLAYERS,
    A,
    B,
    Loads,
    folders_on_disk,
    push,
    sent,
    served,
    upload,
    wanted,
)

pytestmark = pytest.mark.anyio


def name_of(value: float, version: int = 1, config: Mapping[str, Any] = CONFIG) -> str:
    """The name with version of `upload(value)`."""
    digest = hashlib.sha256(upload(value)).hexdigest()
    return f"{frozen_name(digest, config)}@{version}"


async def add(store: AdapterStore, value: float, version: int = 1, rank: int = 2) -> HeldAdapter:
    """Upload a guest adapter whose weights are all `value`."""
    body = upload(value, rank=rank)
    return await store.frozen.add(sent("guest", version, body, {**CONFIG, "r": rank}))


async def fill(store: AdapterStore) -> list[HeldAdapter]:
    """Upload as many guests as fit."""
    return [await add(store, float(number)) for number in range(MAX_FROZEN)]


def using(
    store: AdapterStore, *adapters: HeldAdapter
) -> AbstractAsyncContextManager[dict[str, HeldAdapter]]:
    """A rollout that samples from adapters."""
    return store.lease({adapter.adapter: adapter.version for adapter in adapters})


def check_whole(store: AdapterStore, engine: Loads) -> None:
    """Every guest is in the engine under its name and has its files, and no other guest is."""
    names = store.frozen.names()
    for name in names:
        parts = seat_adapter(name)
        assert parts is not None
        adapter = store.frozen.find(*parts)
        assert adapter.lora == f"handle of {name}"
        assert sorted(path.name for path in adapter.folder.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
    in_engine = [name for name in engine.names if name.startswith("frozen_")]
    on_disk = [name for name in folders_on_disk(store) if name.startswith("frozen_")]
    assert in_engine == sorted(names)
    assert on_disk == sorted(names)


async def test_a_guest_is_named_by_its_content_and_leased_beside_the_sessions_adapters(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 3)
    guest = await add(store, 5.0, version=50)
    assert guest.name == name_of(5.0, 50)
    async with store.lease({"player_0": 3, guest.adapter: 50}) as leased:
        assert {name: adapter.lora for name, adapter in leased.items()} == {
            "player_0": "handle of player_0@3",
            guest.adapter: f"handle of {name_of(5.0, 50)}",
        }
        assert guest.users == 1
    assert guest.users == 0
    check_whole(store, engine)


async def test_the_same_guest_is_loaded_once(store: AdapterStore, engine: Loads) -> None:
    uploads = await asyncio.gather(*[add(store, 5.0) for _ in range(5)])
    first = uploads[0]
    assert all(guest is first for guest in uploads)
    assert await add(store, 5.0) is first
    assert engine.num_loads == 1
    check_whole(store, engine)


async def test_the_same_weights_are_one_guest_in_all_versions_and_two_in_two_configurations(
    store: AdapterStore, engine: Loads
) -> None:
    other_config = {**CONFIG, "lora_alpha": 8}
    first = await add(store, 5.0, version=1)
    # As a player that does not learn has them in two checkpoints: one request may name both.
    assert await add(store, 5.0, version=2) is first
    third = await store.frozen.add(sent("guest", 1, upload(5.0), other_config))
    assert first.name == name_of(5.0, 1)
    assert third.name == name_of(5.0, 1, other_config)
    for guest in (first, third):
        async with using(store, guest) as leased:
            assert leased[guest.adapter] is guest
    check_whole(store, engine)


async def test_guests_leave_places_for_the_sessions_trainer_and_never_drop_its_adapters(
    store: AdapterStore, engine: Loads
) -> None:
    async def add_guest(value: float) -> HeldAdapter:
        return await store.frozen.add(sent("guest", 1, upload(value), CONFIG), is_session=False)

    own = await add(store, 100.0)
    guests = [await add_guest(float(number)) for number in range(MAX_FROZEN - RESERVED)]
    assert len(store.frozen.names()) == MAX_FROZEN - RESERVED + 1
    async with using(store, *guests):
        with pytest.raises(
            BusyError, match=r"all 12 slots .* 4 are reserved for the session's train"
        ):
            await add_guest(50.0)
        for value in (101.0, 102.0, 103.0):
            await add(store, value)
    # The least recently used guest makes room, though the trainer's own is idle for longer.
    await add_guest(51.0)
    assert own.name in store.frozen.names()
    assert guests[0].name not in store.frozen.names()
    check_whole(store, engine)


async def test_the_least_recently_used_makes_room_and_a_lease_or_a_second_upload_counts_as_use(
    store: AdapterStore, engine: Loads
) -> None:
    guests = await fill(store)
    # Guest 0 counts as used when its games have ended, and is never the one to go before.
    async with using(store, guests[0]):
        await add(store, 1.0)
        await add(store, 100.0)
        await add(store, 101.0)
    untouched = [name_of(float(number)) for number in range(4, MAX_FROZEN)]
    touched = [name_of(1.0), name_of(100.0), name_of(101.0), name_of(0.0)]
    assert store.frozen.names() == untouched + touched
    check_whole(store, engine)
    with pytest.raises(
        VersionError, match=rf"{name_of(2.0)} is required, .* upload it again \(PUT /frozen/\)"
    ):
        async with using(store, guests[2]):
            pass


async def test_when_all_guests_are_in_use_the_next_is_refused_and_the_message_names_the_users(
    store: AdapterStore, engine: Loads
) -> None:
    guests = await fill(store)
    async with using(store, *guests[1:]), using(store, guests[0]):
        async with using(store, guests[1]):
            with pytest.raises(
                VersionError, match=r"all 16 slots .* in use .*by 2 rollout\(s\).*send it again"
            ):
                await add(store, 100.0)
            assert await add(store, 3.0) is guests[3], "one that is held needs no place"
        assert sorted(store.frozen.names()) == sorted(guest.name for guest in guests)
        assert engine.num_loads == MAX_FROZEN
        check_whole(store, engine)
    await add(store, 100.0)
    check_whole(store, engine)


async def test_sessions_commits_and_releases_leave_guests_alone(
    store: AdapterStore, engine: Loads
) -> None:
    guest = await add(store, 5.0, version=50)
    await push(store, 1)
    await push(store, 2, 2.0)
    engine.broken.add("player_1@3")
    with pytest.raises(AdapterError, match="cannot load"):
        await push(store, 3, 3.0)
    store.ownership.release(session_headers("run", A))
    await store.open_session(wanted("another run", B, adapters=["shared"]))
    assert store.versions() == {}
    assert store.frozen.names() == [guest.name]
    check_whole(store, engine)
    async with using(store, guest) as leased:
        assert leased[guest.adapter] is guest
    check_whole(store, engine)


async def test_a_refused_upload_changes_nothing_and_drops_no_other(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    for number in range(MAX_FROZEN - 1):
        await add(store, float(number), rank=1 + number)

    def state() -> tuple[object, ...]:
        return served(store), store.frozen.names(), dict(engine.loaded), folders_on_disk(store)

    before = state()
    for body, config, message in (
        (upload(float("nan")), CONFIG, "not finite"),
        (upload(rank=3), CONFIG, r"has shape \(3, 4\), this model needs \(2, 4\)"),
        (upload(rank=17), {**CONFIG, "r": 17}, "r=17; this server accepts ranks 1 to 16"),
        (upload(rank=1), {**CONFIG, "r": True}, "r=True; this server accepts"),
        (upload(), {"peft_type": "LORA"}, "r=None; this server accepts"),
    ):
        with pytest.raises(AdapterError, match=message):
            await store.frozen.add(sent("guest", 1, body, config))
    with pytest.raises(AdapterError, match="resend it"):
        await store.frozen.add(replace(sent("guest", 1, upload()), sha256="0" * 64))
    engine.broken.add(name_of(99.0))
    with pytest.raises(
        AdapterError, match=f"{name_of(99.0)} could not be loaded; nothing else changed: cannot lo"
    ):
        await add(store, 99.0)
    assert state() == before
    engine.broken.clear()
    await add(store, 99.0)
    check_whole(store, engine)


async def test_whatever_the_order_what_a_rollout_holds_is_in_the_engine_and_on_disk(
    store: AdapterStore, engine: Loads
) -> None:
    rng = random.Random(0)

    async def rollout() -> bool:
        """Upload a few guests and sample from them; returns whether that was possible."""
        guests = []
        try:
            for _ in range(rng.randint(1, 4)):
                guests.append(await add(store, float(rng.randrange(24))))
            async with using(store, *guests) as leased:
                for _ in range(rng.randint(1, 6)):
                    await asyncio.sleep(0)
                    for adapter in leased.values():
                        assert engine.loaded[adapter.number] == adapter.name
                        assert (adapter.folder / "adapter_model.safetensors").is_file()
        except VersionError as error:
            assert "it again" in str(error)
            return False
        return True

    async def trainer() -> None:
        for version in range(1, 20):
            with contextlib.suppress(HanabiGrpoError):
                await push(store, version, float(version))
            await asyncio.sleep(0)

    num_possible = 0
    for _ in range(4):
        num_possible += sum(await asyncio.gather(*[rollout() for _ in range(12)]))
        check_whole(store, engine)
        assert len(store.frozen.names()) <= MAX_FROZEN
    await asyncio.gather(trainer(), *[rollout() for _ in range(12)])
    check_whole(store, engine)
    assert num_possible > 20
    assert store.versions() == dict.fromkeys(PLAYERS, 19)


def test_the_engine_has_room_for_all_that_can_be_held() -> None:
    options = engine_options(Settings(players=5), "m")
    assert options["max_cpu_loras"] == 5 * MAX_VERSIONS + MAX_FROZEN + MAX_PROBES
    assert 5 < options["max_loras"] <= options["max_cpu_loras"]
