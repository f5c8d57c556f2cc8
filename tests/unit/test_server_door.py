"""The server's door: who is let in, and what requests that are odd are answered."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from hanabi_grpo.server.app import create_app
from hanabi_grpo.server.door import problem
from hanabi_grpo.server.serving import server_config
from server_app import JSON, OWNER, RunningApp, rollout_body, running_app, session_body

KEY, CHAT = "correct-horse-battery", "/v1/chat/completions"
ROUTES = [
    *(
        ("GET", path)
        for path in (
            "/health",
            "/health/",
            "/identity/",
            "/log/",
            "/v1/models",
            "/no/such/route",
            "/docs",
        )
    ),
    *(
        ("POST", path)
        for path in (
            "/session/",
            "/session/heartbeat",
            "/adapters/commit",
            "/rollout/",
            "/reply/",
            "/score/",
            CHAT,
        )
    ),
    *(("PUT", path) for path in ("/adapters/player_0", "/frozen/")),
    *(
        ("DELETE", "/session/"),
        ("PATCH", "/health/"),
        ("OPTIONS", "/rollout/"),
        ("HEAD", "/health/"),
    ),
]


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningApp]:
    with running_app(api_key=KEY) as app:
        yield app


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def test_a_wrong_or_missing_key_is_401_on_every_route_and_the_right_one_is_not(
    locked: RunningApp,
) -> None:
    served = create_app(
        locked.engine, locked.store, locked.scheduler, locked.identity, locked.ring, api_key=KEY
    )  # type: ignore[arg-type]

    def all_routes(routes: Any) -> Iterator[tuple[str, str]]:
        for route in routes:
            if isinstance(route, APIRoute):
                yield from (
                    (method, route.path.replace("{adapter}", "player_0"))
                    for method in route.methods
                )
            else:
                yield from all_routes(
                    getattr(getattr(route, "original_router", None), "routes", ())
                )

    found = set(all_routes(served.routes))
    assert len(found) == 15 and found <= set(ROUTES), "the list of routes is complete"
    for method, path in ROUTES:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {KEY}x"}):
            answer = httpx.request(method, f"{locked.url}{path}", headers=given, trust_env=False)
            assert answer.status_code == 401, (method, path, given)
            assert method == "HEAD" or "HANABI_API_KEY" in answer.json()["detail"]
        headers = {"authorization": f"Bearer {KEY}"}
        assert (
            httpx.request(
                method, f"{locked.url}{path}", headers=headers, trust_env=False
            ).status_code
            != 401
        )


def test_without_a_key_pages_of_a_browser_are_refused_and_programs_of_this_machine_are_not(
    app: RunningApp, locked: RunningApp
) -> None:
    for host, site, status in (
        ("127.0.0.1", "none", 200),
        ("LOCALHOST:9", "same-origin", 200),
        ("[::1]:8000", "none", 200),
        ("127.0.0.1", "cross-site", 403),
        ("evil.example", "none", 403),
        (f"127.0.0.1.evil.example:{app.port}", "none", 403),
        ("", "none", 403),
    ):
        answer = httpx.get(
            f"{app.url}/health/", headers={"host": host, "sec-fetch-site": site}, trust_env=False
        )
        assert answer.status_code == status, (host, site, answer.text)
        assert (
            status == 200
            or f"host {host!r}, sec-fetch-site {site!r}: a server without"
            in answer.json()["detail"]
        )
    sent = {
        "host": "evil.example",
        "sec-fetch-site": "cross-site",
        "authorization": f"Bearer {KEY}",
    }
    assert httpx.get(f"{locked.url}/health/", headers=sent, trust_env=False).status_code == 200


def test_a_body_that_is_too_large_or_that_a_page_could_post_is_refused(app: RunningApp) -> None:
    size = app.store.max_upload_bytes
    for method, path, body, headers, status, reason in (
        ("POST", "/rollout/", b" " * (25 << 20), JSON, 413, "more than 25165824 bytes"),
        (
            "PUT",
            "/frozen/?version=1",
            b" " * (size + 1),
            {**OWNER, "x-sha256": "0" * 64, "x-peft-config": "{}"},
            413,
            f"more than {size} bytes",
        ),
        (
            "POST",
            "/rollout/",
            b"{}",
            {"content-type": "text/plain"},
            415,
            "content-type 'text/plain'; allowed is",
        ),
        ("POST", "/session/", b"{}", {}, 415, "content-type none; allowed is application/json"),
        ("POST", "/session/", iter([b"{}"]), {}, 415, "content-type none"),  # of no known length
    ):
        answer = httpx.request(
            method, f"{app.url}{path}", content=body, headers=headers, timeout=30, trust_env=False
        )
        assert answer.status_code == status and reason in answer.json()["detail"], (
            method,
            path,
            answer.text,
        )


DEEP = "[" * 100_000


def changed(**task: Any) -> str:
    body = rollout_body()
    body["tasks"][0] |= task
    return json.dumps(body)


def asked(**other: Any) -> str:
    return json.dumps({**rollout_body(), **other})


def test_a_rollout_that_cannot_be_played_is_422_with_the_reason(app: RunningApp) -> None:
    for body, reason in (
        ("", "rollout request: not JSON"),
        (asked(tasks=[]), "tasks=[]: Expected `array` of length >= 1"),
        (asked(top_p=0.9), "top_p=0.9: no such field"),
        ('{"tasks": ' + DEEP, "tasks.0: Expected `object`, got `array`"),
        (changed(suite="a/b"), "tasks.0.suite='a/b': Expected `str` matching regex"),
        (changed(env_config={"preset": "labtop"}), "did you mean"),
        (
            asked(max_tokens=512),
            "MAX_COMPLETION_LENGTH=512: a reply must be shorter than the conversation",
        ),
        (asked(temperature=2.5), "temperature=2.5: Expected `float` <= 2"),
        (
            asked(seats=["player_0", "base"]),
            "tasks.0: seat 'player_0': allowed are adapter@version",
        ),
        (asked(seats=["base"]), "tasks.0: 2 players, but seats=('base',) names 1; name all."),
    ):
        answer = httpx.post(
            f"{app.url}/rollout/", content=body, headers=JSON, timeout=30, trust_env=False
        )
        assert answer.status_code == 422, answer.text
        detail = answer.json()["detail"]
        assert reason in detail and len(detail) < 2100, detail


def test_routes_answer_odd_input_with_4xx(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, trust_env=False) as client:
        assert client.get("/rollout/").status_code == 405
        assert client.get("/nothing").json()["detail"] == "GET /nothing: Not Found"
        assert client.get("/log/?after=x").json()["detail"].startswith("query.after: ")
        assert client.post("/session/", json=session_body(app.identity)).status_code == 200
        for body in ("", "[]", DEEP, '{"run_id": "\\ud800"}'):
            assert 400 <= client.post("/session/", content=body, headers=JSON).status_code < 500, (
                body[:50]
            )
        headers = {**OWNER, "x-sha256": "0" * 64, "x-peft-config": "{}"}
        for name, version, config, status in (
            ("player_0", "1", "[]", 422),
            ("player_0", "1", "{}", 422),
            ("player_0", "x", "{}", 422),
            ("player_9", "1", "{}", 422),
            ("..%2f..%2fetc", "1", "{}", 404),
        ):
            given = {**headers, "x-peft-config": config}
            answer = client.put(f"/adapters/{name}?version={version}", content=b"x", headers=given)
            assert answer.status_code == status, answer.text


def test_a_reason_that_quotes_what_is_no_text_is_still_an_answer() -> None:
    assert json.loads(bytes(problem(422, "suite='\ud800'").body)) == {"detail": "suite='\\ud800'"}


def test_a_server_leaves_the_log_handlers_of_its_process_open(tmp_path: Path) -> None:
    # absl's, which open_spiel brings, closes the stream that it found when it was imported,
    # pytest's own here.
    with contextlib.closing(logging.FileHandler(tmp_path / "run.log")) as handler:
        config = server_config(lambda scope, receive, send: None, graceful_seconds=1)  # type: ignore[arg-type]
        assert handler.stream is not None and config.ws == "none", "a websocket is a plain request"
