"""Lending over a real socket: the route, and what the server says that it holds."""

import hashlib

import httpx

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.runs.adapter_config import frozen_name
from server_app import PEFT_CONFIG, adapter_bytes, push_to, running_app, upload_headers


def test_lending_over_http_needs_no_session_and_the_identity_lists_what_is_held() -> None:
    with running_app() as app, RolloutClient(app.url) as client:
        body = adapter_bytes(0.5)
        seat = client.lend(50, body, PEFT_CONFIG)
        assert seat == f"{frozen_name(hashlib.sha256(body).hexdigest(), PEFT_CONFIG)}@50"
        assert client.lend(50, body, PEFT_CONFIG) == seat
        described = client.identity()
        assert (described["frozen"], described["adapters"], described["versions"]) == ([seat], {}, {})
        bodies = push_to(client, app, version=4)
        described = client.identity()
        assert described["adapters"] == {
            name: {"version": 4, "sha256": hashlib.sha256(one).hexdigest()} for name, one in bodies.items()
        }
        assert described["frozen"] == [seat]
        client.release()
        assert client.identity()["frozen"] == [seat]
        assert len(app.engine.loaded) == 3


def test_what_cannot_be_lent_is_refused_with_its_status() -> None:
    with running_app() as app, httpx.Client(base_url=app.url, trust_env=False) as http:
        body = adapter_bytes(0.5)
        headers = upload_headers(body)
        for params, sent, status, reason in (
            ({}, headers, 422, "version"),
            ({"version": "-1"}, headers, 422, "version"),
            ({"version": str(2**31)}, headers, 422, "version"),
            ({"version": "1"}, {**headers, "content-type": "text/plain"}, 415, "lent adapter: content-type"),
            ({"version": "1"}, {"x-sha256": headers["x-sha256"]}, 422, "x-peft-config"),
            ({"version": "1"}, {**headers, "x-peft-config": '{"r":' * 9000}, 422, "recursion depth"),
            ({"version": "1"}, {**headers, "x-peft-config": "[]"}, 422, "Expected `object`, got `array`"),
            ({"version": "1"}, {**headers, "x-peft-config": '{"r": NaN}'}, 422, "JSON is malformed"),
        ):
            answer = http.put("/frozen/", params=params, content=body, headers=sent)
            assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), answer.text
        too_long = http.put("/frozen/", params={"version": 1}, content=b"\0" * (2 << 20), headers=headers)
        assert too_long.status_code == 413
        assert http.get("/frozen/").status_code == 405
        assert (app.store.frozen.words(), app.engine.loaded) == ([], {})
