"""The server's door: who is let in, and how odd requests are answered."""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from hanabi_grpo.server.app import create_app
from hanabi_grpo.server.door import problem
from hanabi_grpo.server.serving import server_config
from server_app import JSON, OWNER, RunningApp, rollout_body, running_app, session_body

KEY = "correct-horse-battery"
UPLOAD = {**OWNER, "x-sha256": "0" * 64, "x-peft-config": "{}"}
"""Headers of an upload whose digest is wrong."""
SERVED_ROUTES = [
    ("GET", "/health"),
    ("GET", "/health/"),
    ("GET", "/identity/"),
    ("GET", "/log/"),
    ("GET", "/v1/models"),
    ("POST", "/session/"),
    ("POST", "/session/heartbeat"),
    ("POST", "/adapters/commit"),
    ("POST", "/rollout/"),
    ("POST", "/reply/"),
    ("POST", "/score/"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/play/options"),
    ("POST", "/play/games"),
    ("POST", "/play/again"),
    ("POST", "/play/state"),
    ("POST", "/play/move"),
    ("POST", "/play/leave"),
    ("POST", "/play/record"),
    ("PUT", "/adapters/player_0"),
    ("PUT", "/frozen/"),
    ("PUT", "/probes/player_0"),
    ("DELETE", "/session/"),
]
OPEN_ROUTES = [("GET", "/play/")]
"""A static page, which asks for the key."""
OTHER_ROUTES = [
    ("GET", "/no/such/route"),
    ("GET", "/docs"),
    ("PATCH", "/health/"),
    ("OPTIONS", "/rollout/"),
    ("HEAD", "/health/"),
    ("HEAD", "/play/"),
    ("GET", "/play"),
]
DEEP = "[" * 100_000
"""JSON that is nested more deeply than a parser can follow."""


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningApp]:
    """A server with a key."""
    with running_app(api_key=KEY) as app:
        yield app


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    """A server without a key."""
    with running_app() as running:
        yield running


def routes_of(routes: Any) -> Iterator[tuple[str, str]]:
    """Yield method and path of every route, also of included routers."""
    for route in routes:
        if isinstance(route, APIRoute):
            for method in route.methods:
                yield method, route.path.replace("{adapter}", "player_0")
        else:
            router = getattr(route, "original_router", None)
            yield from routes_of(getattr(router, "routes", ()))


def test_the_list_of_served_routes_is_complete(locked: RunningApp) -> None:
    served = create_app(
        locked.engine, locked.store, locked.scheduler, locked.identity, locked.ring, api_key=KEY
    )
    assert sorted(routes_of(served.routes)) == sorted(SERVED_ROUTES + OPEN_ROUTES)


def test_a_wrong_or_missing_key_is_401_on_every_route_and_the_right_one_is_not(
    locked: RunningApp,
) -> None:
    wrong_headers = (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x"},
    )
    right_headers = {"authorization": f"Bearer {KEY}"}
    for method, path in SERVED_ROUTES + OTHER_ROUTES:
        url = f"{locked.url}{path}"
        for headers in wrong_headers:
            answer = httpx.request(method, url, headers=headers, trust_env=False)
            assert answer.status_code == 401, (method, path, headers)
            assert method == "HEAD" or "HANABI_API_KEY" in answer.json()["detail"]
        answer = httpx.request(method, url, headers=right_headers, trust_env=False)
        assert answer.status_code != 401, (method, path)


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
        ("evil.example@127.0.0.1", "none", 403),
        ("127.0.0.1:x@localhost", "none", 403),
        ("127.0.0.1/evil.example", "none", 403),
        ("127.0.0.1:", "none", 403),
    ):
        headers = {"host": host, "sec-fetch-site": site}
        answer = httpx.get(f"{app.url}/health/", headers=headers, trust_env=False)
        assert answer.status_code == status, (host, site, answer.text)
        if status == 403:
            reason = f"host {host!r}, sec-fetch-site {site!r}: a server without"
            assert reason in answer.json()["detail"]
    headers = {
        "host": "evil.example",
        "sec-fetch-site": "cross-site",
        "authorization": f"Bearer {KEY}",
    }
    answer = httpx.get(f"{locked.url}/health/", headers=headers, trust_env=False)
    assert answer.status_code == 200, "a key is enough"


def test_without_a_key_a_page_of_another_origin_is_refused(app: RunningApp) -> None:
    for origin, status in ((app.url, 200), ("http://evil.example", 403), ("null", 403)):
        headers = {"origin": origin}
        answer = httpx.get(f"{app.url}/health/", headers=headers, trust_env=False)
        assert answer.status_code == status, (origin, answer.text)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A request whose body is refused."""

    method: str = "POST"
    path: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int
    reason: str


def test_a_body_that_is_too_large_or_that_a_page_could_post_is_refused(app: RunningApp) -> None:
    max_bytes = app.store.max_upload_bytes
    for case in (
        Refused(
            path="/rollout/",
            body=b" " * (25 << 20),
            headers=JSON,
            status=413,
            reason="more than 25165824 bytes",
        ),
        Refused(
            method="PUT",
            path="/frozen/?version=1",
            body=b" " * (max_bytes + 1),
            headers=UPLOAD,
            status=413,
            reason=f"more than {max_bytes} bytes",
        ),
        Refused(
            path="/rollout/",
            body=b"{}",
            headers={"content-type": "text/plain"},
            status=415,
            reason="content-type 'text/plain'; allowed is",
        ),
        Refused(
            path="/session/",
            body=b"{}",
            status=415,
            reason="content-type none; allowed is application/json",
        ),
        # A body of unknown length.
        Refused(path="/session/", body=iter([b"{}"]), status=415, reason="content-type none"),
    ):
        answer = httpx.request(
            case.method,
            f"{app.url}{case.path}",
            content=case.body,
            headers=dict(case.headers),
            timeout=30,
            trust_env=False,
        )
        assert answer.status_code == case.status, (case.path, answer.text)
        assert case.reason in answer.json()["detail"]


def with_task(**task: Any) -> str:
    """A rollout request whose first task differs in some fields."""
    body = rollout_body()
    body["tasks"][0] |= task
    return json.dumps(body)


def with_fields(**other: Any) -> str:
    """A rollout request that differs in some fields."""
    return json.dumps({**rollout_body(), **other})


def test_a_rollout_that_cannot_be_played_is_422_with_the_reason(app: RunningApp) -> None:
    for body, reason in (
        ("", "rollout request: not JSON"),
        (with_fields(tasks=[]), "tasks=[]: Expected `array` of length >= 1"),
        (with_fields(min_p=0.9), "min_p=0.9: no such field"),
        ('{"tasks": ' + DEEP, "tasks.0: Expected `object`, got `array`"),
        (with_task(suite="a/b"), "tasks.0.suite='a/b': Expected `str` matching regex"),
        (with_task(env_config={"preset": "labtop"}), "did you mean"),
        (
            with_fields(max_tokens=512),
            "MAX_COMPLETION_LENGTH=512: a reply must be shorter than the conversation",
        ),
        (with_fields(temperature=2.5), "temperature=2.5: Expected `float` <= 2"),
        (
            with_fields(seats=["player_0", "base"]),
            "tasks.0: seat 'player_0': allowed are adapter@version",
        ),
        (
            with_fields(seats=["base"]),
            "tasks.0: 2 players, but seats=('base',) has 1; give one per player.",
        ),
    ):
        answer = httpx.post(
            f"{app.url}/rollout/", content=body, headers=JSON, timeout=30, trust_env=False
        )
        assert answer.status_code == 422, answer.text
        detail = answer.json()["detail"]
        assert reason in detail, detail
        assert len(detail) < 2100, "a message quotes no more than a part of a long value"


def test_routes_answer_odd_input_with_4xx(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, trust_env=False) as client:
        assert client.get("/rollout/").status_code == 405
        assert client.get("/nothing").json()["detail"] == "GET /nothing: Not Found"
        assert client.get("/log/?after=x").json()["detail"].startswith("query.after: ")


def test_a_session_request_that_is_none_is_4xx(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, trust_env=False) as client:
        for body in ("", "[]", DEEP, '{"run_id": "\\ud800"}'):
            answer = client.post("/session/", content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, body[:50]


def test_an_upload_that_is_none_is_4xx(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, trust_env=False) as client:
        assert client.post("/session/", json=session_body(app.identity)).status_code == 200
        for name, version, config, status in (
            ("player_0", "1", "[]", 422),
            ("player_0", "1", "{}", 422),
            ("player_0", "x", "{}", 422),
            ("player_9", "1", "{}", 422),
            ("..%2f..%2fetc", "1", "{}", 404),
        ):
            answer = client.put(
                f"/adapters/{name}?version={version}",
                content=b"x",
                headers={**UPLOAD, "x-peft-config": config},
            )
            assert answer.status_code == status, answer.text


def test_a_reason_that_quotes_what_is_no_text_is_still_an_answer() -> None:
    answer = problem(422, "suite='\ud800'")
    assert json.loads(bytes(answer.body)) == {"detail": "suite='\\ud800'"}


def test_a_server_leaves_the_log_handlers_of_its_process_open(tmp_path: Path) -> None:
    # absl's handler, which open_spiel brings, closes the stream that it took when it was imported,
    # pytest's own here.
    with contextlib.closing(logging.FileHandler(tmp_path / "run.log")) as handler:
        config = server_config(lambda scope, receive, send: None, graceful_seconds=1)  # type: ignore[arg-type]
        assert handler.stream is not None
        assert config.ws == "none", "a websocket is a plain request"
