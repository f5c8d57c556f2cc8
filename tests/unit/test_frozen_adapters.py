"""Lent adapters: held once, bounded, dropped only when nobody uses them, and apart from every
session.
"""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hanabi_grpo.errors import AdapterError, HanabiGrpoError, VersionError
from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.server.adapter_loader import HeldAdapter
from hanabi_grpo.server.adapter_store import MAX_VERSIONS, AdapterStore
from hanabi_grpo.server.engine import engine_options
from hanabi_grpo.server.frozen_adapters import MAX_FROZEN
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


def word(value: float, version: int, config: Mapping[str, Any] = CONFIG) -> str:
    """The seat word of `upload(value)`."""
    return f"{frozen_name(hashlib.sha256(upload(value)).hexdigest(), config)}@{version}"


async def lend(store: AdapterStore, value: float, version: int = 1, rank: int = 2) -> HeldAdapter:
    return await store.frozen.add(
        sent("lent", version, upload(value, rank=rank), {**CONFIG, "r": rank})
    )


def using(
    store: AdapterStore, *held: HeldAdapter
) -> contextlib.AbstractAsyncContextManager[dict[str, HeldAdapter]]:
    return store.lease({one.adapter: one.version for one in held})


def check_whole(store: AdapterStore, engine: Loads) -> None:
    """Every lent adapter is in the engine under its name and has its files, and nothing else lent
    is there.
    """
    words = store.frozen.names()
    for one in words:
        named = seat_adapter(one)
        assert named is not None
        held = store.frozen.find(*named)
        assert held.lora == f"handle of {one}"
        assert sorted(path.name for path in held.folder.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
    assert [name for name in engine.names if name.startswith("frozen_")] == sorted(words)
    assert [name for name in folders_on_disk(store) if name.startswith("frozen_")] == sorted(words)


async def test_a_lent_adapter_is_named_by_its_content_and_leased_beside_the_sessions(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 3)
    held = await lend(store, 5.0, version=50)
    assert held.name == word(5.0, 50)
    async with store.lease({"player_0": 3, held.adapter: 50}) as leased:
        assert {name: one.lora for name, one in leased.items()} == {
            "player_0": "handle of player_0@3",
            held.adapter: f"handle of {word(5.0, 50)}",
        }
        assert held.users == 1
    assert held.users == 0
    check_whole(store, engine)


async def test_the_same_adapter_is_loaded_once_and_as_two_versions_or_with_another_alpha_it_is_apart(
    store: AdapterStore, engine: Loads
) -> None:
    lent = await asyncio.gather(*(lend(store, 5.0) for _ in range(5)))
    assert len(set(map(id, lent))) == 1
    assert await lend(store, 5.0) is lent[0]
    assert engine.num_loads == 1
    first, second = await lend(store, 5.0, version=1), await lend(store, 5.0, version=2)
    other = {**CONFIG, "lora_alpha": 8}
    third = await store.frozen.add(sent("lent", 1, upload(5.0), other))
    assert [first.name, second.name, third.name] == [
        word(5.0, 1),
        word(5.0, 2),
        word(5.0, 1, other),
    ]
    for held in (first, second, third):
        async with using(store, held) as leased:
            assert leased[held.adapter] is held
    check_whole(store, engine)


async def test_the_least_recently_used_makes_room_and_a_lease_or_a_second_lending_counts_as_use(
    store: AdapterStore, engine: Loads
) -> None:
    held = [await lend(store, float(number)) for number in range(MAX_FROZEN)]
    # The first counts as used when its games have ended, and is never the one to go before.
    async with using(store, held[0]):
        await lend(store, 1.0)
        await lend(store, 100.0)
        await lend(store, 101.0)
    assert store.frozen.names() == [
        *(word(float(number), 1) for number in range(4, MAX_FROZEN)),
        *(word(value, 1) for value in (1.0, 100.0, 101.0, 0.0)),
    ]
    check_whole(store, engine)
    with pytest.raises(
        VersionError, match=rf"{word(2.0, 1)} is required, .* upload it again \(PUT /frozen/\)"
    ):
        async with using(store, held[2]):
            pass


async def test_when_all_places_are_in_use_the_next_is_refused_and_says_by_whom(
    store: AdapterStore, engine: Loads
) -> None:
    held = [await lend(store, float(number)) for number in range(MAX_FROZEN)]
    async with using(store, *held[1:]), using(store, held[0]):
        async with using(store, held[1]):
            with pytest.raises(
                VersionError, match=r"all 16 places .* in use .*by 2 rollout\(s\).*upload it again"
            ):
                await lend(store, 100.0)
            assert (await lend(store, 3.0)) is held[3], "one that is held needs no place"
        assert sorted(store.frozen.names()) == sorted(one.name for one in held)
        assert engine.num_loads == MAX_FROZEN
        check_whole(store, engine)
    await lend(store, 100.0)
    check_whole(store, engine)


async def test_sessions_commits_and_releases_leave_lent_adapters_alone(
    store: AdapterStore, engine: Loads
) -> None:
    held = await lend(store, 5.0, version=50)
    await push(store, 1)
    await push(store, 2, 2.0)
    engine.broken.add("player_1@3")
    with pytest.raises(AdapterError, match="cannot load"):
        await push(store, 3, 3.0)
    store.ownership.release(session_headers("run", A))
    await store.open_session(wanted("another run", B, adapters=["shared"]))
    assert store.versions() == {}
    assert store.frozen.names() == [held.name]
    check_whole(store, engine)
    async with using(store, held) as leased:
        assert leased[held.adapter] is held
    check_whole(store, engine)


async def test_a_refused_upload_changes_nothing_and_drops_nobody(
    store: AdapterStore, engine: Loads
) -> None:
    await push(store, 1)
    for number in range(MAX_FROZEN - 1):
        await lend(store, float(number), rank=1 + number)
    engine.broken.add(word(99.0, 1))
    before = (served(store), store.frozen.names(), dict(engine.loaded), folders_on_disk(store))
    for body, config, message in (
        (upload(float("nan")), CONFIG, "not finite"),
        (upload(rank=3), CONFIG, r"has shape \(3, 4\), this model needs \(2, 4\)"),
        (upload(rank=17), {**CONFIG, "r": 17}, "r=17; this server takes ranks 1 to 16"),
        (upload(rank=1), {**CONFIG, "r": True}, "r=True; this server takes"),
        (upload(), {"peft_type": "LORA"}, "r=None; this server takes"),
    ):
        with pytest.raises(AdapterError, match=message):
            await store.frozen.add(sent("lent", 1, body, config))
    with pytest.raises(AdapterError, match="resend it"):
        await store.frozen.add(replace(sent("lent", 1, upload()), sha256="0" * 64))
    with pytest.raises(
        AdapterError, match=f"{word(99.0, 1)} could not be loaded, nothing else changed: cannot lo"
    ):
        await lend(store, 99.0)
    assert (
        served(store),
        store.frozen.names(),
        dict(engine.loaded),
        folders_on_disk(store),
    ) == before
    engine.broken.clear()
    await lend(store, 99.0)
    check_whole(store, engine)


async def test_whatever_the_order_what_a_rollout_holds_is_in_the_engine_and_on_disk(
    store: AdapterStore, engine: Loads
) -> None:
    rng = random.Random(0)

    async def rollout() -> int:
        """Lend a few and sample from them; returns how often that was possible."""
        try:
            held = [await lend(store, float(rng.randrange(24))) for _ in range(rng.randint(1, 4))]
            async with using(store, *held) as leased:
                for _ in range(rng.randint(1, 6)):
                    await asyncio.sleep(0)
                    for one in leased.values():
                        assert engine.loaded[one.number] == one.name
                        assert (one.folder / "adapter_model.safetensors").is_file()
        except VersionError as error:
            assert "upload it again" in str(error)
            return 0
        return 1

    async def trainer() -> None:
        for version in range(1, 20):
            with contextlib.suppress(HanabiGrpoError):
                await push(store, version, float(version))
            await asyncio.sleep(0)

    played = 0
    for _ in range(4):
        played += sum(await asyncio.gather(*(rollout() for _ in range(12))))
        check_whole(store, engine)
        assert len(store.frozen.names()) <= MAX_FROZEN
    await asyncio.gather(trainer(), *(rollout() for _ in range(12)))
    check_whole(store, engine)
    assert played > 20
    assert store.versions() == dict.fromkeys(PLAYERS, 19)


def test_the_engine_has_room_for_all_that_can_be_held() -> None:
    options = engine_options(Settings(players=5), "m")
    assert options["max_cpu_loras"] == 5 * MAX_VERSIONS + MAX_FROZEN
    assert 5 < options["max_loras"] <= options["max_cpu_loras"]
