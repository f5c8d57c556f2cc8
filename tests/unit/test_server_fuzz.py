"""Mutated requests on a socket: 200 or 4xx, never 500; what is served stays as it was.

Uploads and rollouts by themselves are knocked with in tests/faults/test_door_faults.py.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hanabi_grpo.server.frozen_adapters import MAX_FROZEN
from mutations import mutate_rollout, mutate_upload
from server_app import (
    JSON,
    OWNER,
    PEFT_CONFIG,
    PLAYERS,
    RunningApp,
    adapter_bytes,
    running_app,
    session_body,
)
from server_app import upload_headers as headers_of

UPLOAD = adapter_bytes(0.25)
REPLY = json.dumps(
    {
        "seat": "player_0@1",
        "system": "life1",
        "turns": [{"prompt": "life1 info3", "reply_ids": [3, 4]}, {"prompt": "deck2", "reply_ids": [5]}],
        "prompt": "life1 info2",
        "max_tokens": 4,
        "temperature": 1.0,
    }
).encode()
BOUNDED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        with httpx.Client(base_url=running.url, headers=OWNER, trust_env=False) as client:
            assert client.post("/session/", json=session_body(running.identity)).status_code == 200
            for number, player in enumerate(PLAYERS):
                body = adapter_bytes(0.5 + number)
                answer = client.put(
                    f"/adapters/{player}", params={"version": 1}, content=body, headers=headers_of(body)
                )
                assert answer.status_code == 200, answer.text
            assert client.post("/adapters/commit", params={"version": 1}).status_code == 200
        yield running


@pytest.fixture(scope="module")
def client(app: RunningApp) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, headers=OWNER, trust_env=False, timeout=30) as client:
        yield client


def state_of(app: RunningApp) -> tuple[object, ...]:
    """What is served: versions, handles of the engine, and the bytes of the files behind them."""
    held = {name: one for name, one in app.store._served.items()}
    files = {name: [path.read_bytes() for path in sorted(Path(one.folder).iterdir())] for name, one in held.items()}
    return app.store.versions(), dict(app.engine.loaded), {name: one.lora for name, one in held.items()}, files


@BOUNDED
@given(seed=st.integers(0, 2**32))
def test_a_mutated_lending_is_taken_whole_or_refused_and_leaves_the_session_alone(
    app: RunningApp, client: httpx.Client, seed: int
) -> None:
    versions, _, handles, files = state_of(app)
    held = app.store.frozen.words()
    body, headers = mutate_upload(random.Random(seed), UPLOAD, PEFT_CONFIG)
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = client.put("/frozen/", params={"version": seed % 5}, content=body, headers=sent)  # type: ignore[arg-type]
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert app.store.frozen.words() == held
    after = state_of(app)
    assert (after[0], after[2], after[3]) == (versions, handles, files)
    lent = app.store.frozen._held.values()
    assert len(lent) <= MAX_FROZEN
    assert all(app.engine.loaded[one.number] == one.lora and len(list(one.folder.iterdir())) == 2 for one in lent)
    assert len(app.engine.loaded) == len(PLAYERS) + len(lent)


@BOUNDED
@given(seed=st.integers(0, 2**32))
def test_a_mutated_reply_request_is_answered_or_refused(app: RunningApp, client: httpx.Client, seed: int) -> None:
    before = state_of(app)
    answer = client.post("/reply/", content=mutate_rollout(random.Random(seed), REPLY), headers=JSON)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    assert state_of(app) == before
