"""PUT /probes/: an adapter is loaded on the usual way, scored on every copy, and dropped."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.sampler import AdapterHandle
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.fleet_link import FleetLink
from hanabi_grpo.training.link import ServerLink
from server_app import (
    OWNER,
    PEFT_CONFIG,
    PLAYERS,
    DozyEngine,
    RunningApp,
    WordEngine,
    adapter_bytes,
    lora_of,
    open_session,
    push_to,
    running_app,
    upload_headers,
)

SEQUENCES = [[1, 2, 3], [4, 5]]


class CopiesEngine(WordEngine):
    """An engine of several copies; a score says who computed it, under what, and of what."""

    num_copies = 2

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        assert adapter is None or adapter in self.loaded.values()
        assert len(prompt_ids) == 1
        value = 0.0 if adapter is None else _number(str(adapter))
        return tuple(-(value + 100 * (copy or 0) + token) for token in reply_ids)


def _number(handle: str) -> float:
    return int(hashlib.sha256(handle.encode()).hexdigest()[:4], 16) / 1e5


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app(engine=CopiesEngine()) as app:
        yield app


def headers_of(body: bytes, ids: str = json.dumps(SEQUENCES), **other: str) -> dict[str, str]:
    return {**OWNER, **upload_headers(body), "x-token-ids": ids, **other}


def test_every_copy_scores_the_ids_with_and_without_the_adapter_and_nothing_is_left(
    app: RunningApp,
) -> None:
    with RolloutClient(app.url) as client:
        open_session(client, app)
        push_to(client, app, version=3)
        engine: Any = app.engine
        loaded = dict(engine.loaded)
        folders = _folders(app)
        body = adapter_bytes(0.5)
        answer = client.probe(PLAYERS[0], body, PEFT_CONFIG, SEQUENCES)
        value = _number(lora_of(body))
        for number, copy in enumerate(answer.copies):
            assert copy.without == (
                (-100.0 * number - 2, -100.0 * number - 3),
                (-100.0 * number - 5,),
            )
            assert copy.under == tuple(
                tuple(-(value + 100 * number + token) for token in ids[1:]) for ids in SEQUENCES
            )
        assert len(answer.copies) == 2
        assert engine.loaded == loaded
        assert _folders(app) == folders
        assert client.identity()["versions"] == dict.fromkeys(PLAYERS, 3)


def _folders(app: RunningApp) -> list[str]:
    return sorted(path.name for path in app.store.folder.path.iterdir())


def test_a_stranger_is_refused_and_so_is_a_player_that_nobody_trains(app: RunningApp) -> None:
    body = adapter_bytes(0.5)
    url = f"{app.url}/probes/player_0"
    refused = httpx.put(url, content=body, headers=headers_of(body))
    assert refused.status_code == 409
    with RolloutClient(app.url) as client:
        open_session(client, app)
        with pytest.raises(ServerError, match="'player_9': this session trains player_0, player_1"):
            client.probe("player_9", body, PEFT_CONFIG, SEQUENCES)
        stranger = headers_of(body) | client.headers | {"x-trainer-id": "1" * 32}
        assert httpx.put(url, content=body, headers=stranger).status_code == 409


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("[[1]]", "of length >= 2"),
        ("[]", "of length >= 1"),
        ("1", "Expected `array`"),
        ("[[1, -2]]", "Expected `int` >= 0"),
        ("[[1, 2", "truncated"),
        (json.dumps([[1] * 300]), "of length <= 256"),
        ("[[1, 2000000000]]", "token id 2000000000; this model has ids 0 to"),
    ],
)
def test_ids_that_cannot_be_scored_are_refused(app: RunningApp, ids: str, message: str) -> None:
    body = adapter_bytes(0.5)
    with RolloutClient(app.url) as client:
        open_session(client, app)
        answer = httpx.put(
            f"{app.url}/probes/player_0",
            content=body,
            headers={**headers_of(body, ids), **client.headers},
        )
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["detail"]


def test_weights_that_no_upload_may_have_are_refused(app: RunningApp) -> None:
    with RolloutClient(app.url) as client:
        open_session(client, app)
        with pytest.raises(ServerError, match="not a readable safetensors file"):
            client.probe("player_0", b"nothing", PEFT_CONFIG, SEQUENCES)
        engine: Any = app.engine
        assert engine.loaded == {}


def test_a_probe_of_weights_that_compute_no_number_says_so() -> None:
    class NoNumbers(CopiesEngine):
        async def score(
            self,
            prompt_ids: list[int],
            reply_ids: list[int],
            adapter: AdapterHandle | None,
            copy: int | None = None,
        ) -> tuple[float, ...]:
            return (math.nan,) * len(reply_ids)

    with running_app(engine=NoNumbers()) as app, RolloutClient(app.url) as client:
        push_to(client, app)
        with pytest.raises(ServerError, match="probe of player_0: logprob 0 is nan"):
            client.probe("player_0", adapter_bytes(2.0), PEFT_CONFIG, SEQUENCES)


def test_an_engine_that_sleeps_is_awake_for_the_probe_and_sleeps_again() -> None:
    engine = DozyEngine()
    with running_app(engine=engine, sleeps=True) as app, RolloutClient(app.url) as client:
        open_session(client, app)
        push_to(client, app)
        client.probe("player_0", adapter_bytes(0.5), PEFT_CONFIG, SEQUENCES)
        assert engine.is_asleep
        client.probe("player_1", adapter_bytes(0.5), PEFT_CONFIG, SEQUENCES)
        assert engine.is_asleep
        assert [event for event in engine.events if "in its sleep" in event] == []


def test_a_link_names_replicas_and_servers(app: RunningApp, tmp_path: Path) -> None:
    with running_app(engine=WordEngineOfOne()) as other:
        hosts = ",".join(url.removeprefix("http://") for url in (app.url, other.url))
        settings = Settings(vllm_server_host=hosts)
        fleet = FleetLink(settings, tmp_path)
        assert fleet.instances == ()
        for link, server in zip(fleet.links.values(), (app, other), strict=True):
            open_session(link.client, server)
            link.instance_id = f"instance of {server.url}"
        replicas = fleet.probe("player_0", adapter_bytes(0.5), PEFT_CONFIG, SEQUENCES)
        first, second = fleet.links
        assert [replica.where for replica in replicas] == [
            f"{first}, replica 1 of 2",
            f"{first}, replica 2 of 2",
            second,
        ]
        assert list(replicas[1].without) == [-102.0, -103.0, -105.0]
        assert fleet.instances == (f"instance of {app.url}", f"instance of {other.url}")
        single: ServerLink = fleet.links[second]
        assert single.instances == (f"instance of {other.url}",)
        for link in fleet.links.values():
            link.client.release()


class WordEngineOfOne(CopiesEngine):
    """An engine of a single copy."""

    num_copies = 1
