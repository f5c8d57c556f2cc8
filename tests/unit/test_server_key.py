"""The key: on every route, known or not, and nowhere in what the server says."""

import json
import logging

import httpx
import pytest

from server_app import RunningApp, rollout_body, running_app

KEY = "correct-horse-battery"
ROUTES = [
    ("GET", "/health"),
    ("GET", "/health/"),
    ("GET", "/identity/"),
    ("GET", "/log/"),
    ("POST", "/session/"),
    ("POST", "/session/heartbeat"),
    ("DELETE", "/session/"),
    ("PUT", "/adapters/player_0"),
    ("POST", "/adapters/commit"),
    ("PUT", "/frozen/"),
    ("POST", "/rollout/"),
    ("POST", "/reply/"),
    ("POST", "/reset_prefix_cache/"),
    ("GET", "/no/such/route"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("PATCH", "/health/"),
    ("OPTIONS", "/rollout/"),
    ("HEAD", "/health/"),
    ("BREW", "/coffee"),
]


@pytest.fixture(scope="module")
def locked():  # type: ignore[no-untyped-def]
    with running_app(api_key=KEY) as app:
        yield app


def ask(app: RunningApp, method: str, path: str, *given: str) -> httpx.Response:
    headers = [("authorization", value.encode("latin-1")) for value in given]
    return httpx.request(method, f"{app.url}{path}", headers=headers, trust_env=False)  # type: ignore[arg-type]


def test_the_list_of_routes_is_complete(locked: RunningApp) -> None:
    from fastapi.routing import APIRoute

    from hanabi_grpo.server.app import create_app

    app = create_app(locked.engine, locked.store, locked.scheduler, locked.identity, locked.ring, api_key=KEY)  # type: ignore[arg-type]

    def all_routes(routes):  # type: ignore[no-untyped-def]
        for route in routes:
            if isinstance(route, APIRoute):
                yield from ((method, route.path) for method in route.methods)
            else:
                original = getattr(route, "original_router", None)
                yield from all_routes(getattr(original, "routes", ()))

    served = {(method, path.replace("{adapter}", "player_0")) for method, path in all_routes(app.routes)}
    assert len(served) >= 13
    assert served <= set(ROUTES)


def test_a_wrong_or_missing_key_is_401_on_every_route_and_the_right_one_is_not(locked: RunningApp) -> None:
    for method, path in ROUTES:
        for given in ((), ("Bearer wrong",), (f"Bearer {KEY}x",), (KEY,), (f"Basic {KEY}",)):
            answer = ask(locked, method, path, *given)
            assert answer.status_code == 401, (method, path, given)
            if method != "HEAD":
                assert "HANABI_API_KEY" in answer.json()["detail"]
        assert ask(locked, method, path, f"Bearer {KEY}").status_code != 401


def test_odd_authorization_headers_let_in_only_the_key(locked: RunningApp) -> None:
    for given, status in (
        ((f"bearer {KEY}",), 200),
        ((f"BEARER   {KEY}  ",), 200),
        ((f"Bearer {KEY}", f"Bearer {KEY}"), 401),
        (("Bearer wrong", f"Bearer {KEY}"), 401),
        (("Bearer \xe9\xff",), 401),
        (("Bearer",), 401),
        (("",), 401),
        ((f"Bearer {KEY} {KEY}",), 401),
        ((f"Bearer{KEY}",), 401),
    ):
        lines = "".join(f"Authorization: {value}\r\n" for value in given)
        with locked.connect() as raw:
            raw.sendall(f"GET /health/ HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode("latin-1"))
            assert raw.recv(65536).startswith(f"HTTP/1.1 {status} ".encode()), given


def test_a_stranger_learns_nothing_of_a_body_limit_and_uses_no_place(locked: RunningApp) -> None:
    answer = httpx.post(f"{locked.url}/rollout/", content=b"x" * (2 << 20), trust_env=False)
    assert answer.status_code == 401


def test_without_a_key_pages_of_a_browser_are_refused_and_programs_of_this_machine_are_not() -> None:
    with running_app() as app:
        for host, status in (
            ("127.0.0.1", 200),
            (f"127.0.0.1:{app.port}", 200),
            ("LOCALHOST:9", 200),
            ("[::1]:8000", 200),
            ("evil.example", 403),
            (f"127.0.0.1.evil.example:{app.port}", 403),
            ("::1", 403),
            ("x[::1]", 403),
            ("", 403),
        ):
            answer = httpx.get(f"{app.url}/health/", headers={"host": host}, trust_env=False)
            assert answer.status_code == status, (host, answer.text)
            if status == 403:
                assert answer.json()["detail"] == (
                    f"host {host!r}: a server without a key answers to 127.0.0.1, localhost, [::1]. Name it so in "
                    "VLLM_SERVER_HOST, or set HANABI_API_KEY in both terminals."
                )
        for site, status in (("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403)):
            answer = httpx.get(f"{app.url}/health/", headers={"sec-fetch-site": site}, trust_env=False)
            assert answer.status_code == status, site
    with running_app(api_key=KEY) as app:
        sent = {"host": "evil.example", "sec-fetch-site": "cross-site", "authorization": f"Bearer {KEY}"}
        assert httpx.get(f"{app.url}/health/", headers=sent, trust_env=False).status_code == 200


def test_a_posted_body_needs_a_content_type_and_an_empty_one_does_not() -> None:
    with running_app() as app:
        for path in ("/rollout/", "/reply/", "/session/"):
            answer = httpx.post(f"{app.url}{path}", content=b"{}", trust_env=False)
            assert answer.status_code == 415
            assert "a body without content-type; send content-type: application/json." in answer.json()["detail"]
            assert httpx.post(f"{app.url}{path}", trust_env=False).status_code == 422
        assert httpx.post(f"{app.url}/reset_prefix_cache/", trust_env=False).status_code == 200


def test_a_websocket_without_a_key_writes_no_line(
    locked: RunningApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(locked, "GET", "/health/")  # uvicorn sets its loggers up in a thread of its own
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    asked = {"connection": "upgrade", "upgrade": "websocket"}
    assert httpx.get(f"{locked.url}/health/", headers=asked, trust_env=False).status_code == 401
    assert [record.getMessage() for record in caplog.records if not record.name.startswith("http")] == []


def test_the_key_is_in_no_answer_and_no_log_line(
    locked: RunningApp, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    said = []
    headers = {"authorization": f"Bearer {KEY}", "x-run-id": "x", "x-peft-config": "{", "x-sha256": "y"}
    with caplog.at_level(logging.DEBUG), httpx.Client(base_url=locked.url, headers=headers, trust_env=False) as client:
        for method, path in ROUTES:
            for content in (b"", b"\xff", b'{"tasks": 1}', json.dumps(rollout_body()).encode()):
                answer = client.request(method, path, content=content)
                said.append(answer.text + str(answer.headers))
        said.append(client.get("/log/", params={"after": "x"}).text)
    with locked.connect() as raw:
        raw.sendall(f"GET /health/ HTTP/1.1\r\nauthorization: Bearer {KEY}\r\nbad header\r\n\r\n".encode())
        said.append(raw.recv(65536).decode())
    written = capfd.readouterr()
    assert KEY not in "".join(said)
    # The client of this test logs what it sends; it is not the server.
    assert all(KEY not in record.getMessage() for record in caplog.records if not record.name.startswith("http"))
    assert KEY not in written.out + written.err
    assert KEY not in "".join(locked.ring.since(0)[1])
