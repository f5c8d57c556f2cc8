"""The server's door: who is let in, and bodies, connections and requests that are too large, slow, many or odd."""

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from fastapi.routing import APIRoute

from hanabi_grpo.server.app import create_app
from hanabi_grpo.server.door import Limits, problem
from hanabi_grpo.server.serving import server_config
from server_app import JSON, POST_ROLLOUT, RunningApp, read_to_end, rollout_body, running_app

KEY, CHAT = "correct-horse-battery", "/v1/chat/completions"
ROUTES = [
    *(
        ("GET", path)
        for path in ("/health", "/health/", "/identity/", "/log/", "/v1/models", "/no/such/route", "/docs")
    ),
    *(
        ("POST", path)
        for path in ("/session/", "/session/heartbeat", "/adapters/commit", "/rollout/", "/reply/", "/score/", CHAT)
    ),
    *(("PUT", path) for path in ("/adapters/player_0", "/frozen/")),
    *(("DELETE", "/session/"), ("PATCH", "/health/"), ("OPTIONS", "/rollout/"), ("HEAD", "/health/")),
]
QUICK = Limits(
    head_seconds=0.5,
    chunk_seconds=0.4,
    connections=6,
    body_bytes_per_second=1000,
    rollout_bytes=1_000_000,
    adapter_bytes=10_000,
    other_bytes=5_000,
    rollouts_at_once=2,
)
GENEROUS = 8.0


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningApp]:
    with running_app(api_key=KEY) as app:
        yield app


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


@pytest.fixture(scope="module")
def quick() -> Iterator[RunningApp]:
    with running_app(limits=QUICK) as app:
        yield app


def wait_until_free(app: RunningApp) -> None:
    """Wait until connections of an earlier test are gone."""
    deadline = time.monotonic() + GENEROUS
    while httpx.get(f"{app.url}/health/", trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- the key ---


def test_a_wrong_or_missing_key_is_401_on_every_route_and_the_right_one_is_not(locked: RunningApp) -> None:
    served = create_app(locked.engine, locked.store, locked.scheduler, locked.identity, locked.ring, api_key=KEY)  # type: ignore[arg-type]

    def all_routes(routes: Any) -> Iterator[tuple[str, str]]:
        for route in routes:
            if isinstance(route, APIRoute):
                yield from ((method, route.path.replace("{adapter}", "player_0")) for method in route.methods)
            else:
                yield from all_routes(getattr(getattr(route, "original_router", None), "routes", ()))

    found = set(all_routes(served.routes))
    assert len(found) == 15 and found <= set(ROUTES), "the list of routes is complete"
    for method, path in ROUTES:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Bearer {KEY}x"}):
            answer = httpx.request(method, f"{locked.url}{path}", headers=given, trust_env=False)
            assert answer.status_code == 401, (method, path, given)
            assert method == "HEAD" or "HANABI_API_KEY" in answer.json()["detail"]
        headers = {"authorization": f"Bearer {KEY}"}
        assert httpx.request(method, f"{locked.url}{path}", headers=headers, trust_env=False).status_code != 401
    large = httpx.post(f"{locked.url}/rollout/", content=b"x" * (2 << 20), trust_env=False)
    assert large.status_code == 401, "a stranger learns nothing of a body limit"


def test_odd_authorization_headers_let_in_only_the_key(locked: RunningApp) -> None:
    for given, status in (
        ((f"bearer {KEY}",), 200),
        ((f"BEARER   {KEY}  ",), 200),
        ((f"Bearer {KEY}", f"Bearer {KEY}"), 401),
        (("Bearer wrong", f"Bearer {KEY}"), 401),
        ((KEY,), 401),
        ((f"Basic {KEY}",), 401),
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


def test_without_a_key_pages_of_a_browser_are_refused_and_programs_of_this_machine_are_not(
    app: RunningApp, locked: RunningApp
) -> None:
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
        assert answer.status_code == status and (status == 200 or f"sec-fetch-site {site!r}" in answer.text)
    for path in ("/rollout/", "/reply/", "/session/", CHAT):
        answer = httpx.post(f"{app.url}{path}", content=b"{}", trust_env=False)
        assert answer.status_code == 415, "what a page can post without asking first"
        assert "a body without content-type; send content-type: application/json." in answer.json()["detail"]
        assert httpx.post(f"{app.url}{path}", trust_env=False).status_code == 422
    sent = {"host": "evil.example", "sec-fetch-site": "cross-site", "authorization": f"Bearer {KEY}"}
    assert httpx.get(f"{locked.url}/health/", headers=sent, trust_env=False).status_code == 200


def test_the_key_is_in_no_answer_and_no_log_line(
    locked: RunningApp, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    said = []
    headers = {"authorization": f"Bearer {KEY}", "x-run-id": "x", "x-peft-config": "{", "x-sha256": "y"}
    with caplog.at_level(logging.DEBUG), httpx.Client(base_url=locked.url, headers=headers, trust_env=False) as client:
        for method, path in ROUTES:
            for content in (b"\xff", json.dumps(rollout_body()).encode()):
                answer = client.request(method, path, content=content)
                said.append(answer.text + str(answer.headers))
    with locked.connect() as raw:
        raw.sendall(f"GET /health/ HTTP/1.1\r\nauthorization: Bearer {KEY}\r\nbad header\r\n\r\n".encode())
        said.append(raw.recv(65536).decode())
    written = capfd.readouterr()
    # The client of this test logs what it sends; it is not the server.
    said += [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    assert KEY not in "".join([*said, written.out, written.err, *locked.ring.since(0)[1]])


# --- bodies ---


@pytest.mark.parametrize(
    ("method", "path", "what", "limit"),
    [
        ("POST", "/rollout/", "rollout request", 1_000_000),
        ("PUT", "/adapters/player_0?version=1", "adapter upload", 10_000),
        ("POST", "/session/", "request body", 5_000),
        ("GET", "/no/such/route", "request body", 5_000),
    ],
)
def test_a_body_over_its_limit_is_refused_before_it_is_read(
    quick: RunningApp, method: str, path: str, what: str, limit: int
) -> None:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {limit + 1}\r\n\r\n"
    with quick.connect() as client:
        client.sendall(head.encode())
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert f"{what}: {limit + 1} bytes; allowed are at most {limit}." in answer.decode()


def test_a_large_body_with_or_without_a_length_gets_its_reason_and_the_connection_lives_on(quick: RunningApp) -> None:
    with httpx.Client(base_url=quick.url, trust_env=False) as client:
        answer = client.post("/session/", content=(b" " * 1000 for _ in range(50)), headers=JSON)
        assert answer.status_code == 413
        assert "more than 5000 bytes; allowed are at most 5000" in answer.json()["detail"]
        assert client.post("/rollout/", content=b"x" * (8 << 20), headers=JSON).status_code == 413
        assert client.get("/health/").status_code == 200


def test_a_body_that_stops_coming_gets_408_with_what_came_and_what_was_expected(quick: RunningApp) -> None:
    with quick.connect() as client:
        client.sendall(POST_ROLLOUT + b"content-length: 1000\r\n\r\n" + b"{" * 10)
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b": 10 of 1000 bytes received; nothing came for 0.4 s. Send it again." in answer


def test_a_body_that_drips_gets_408_although_no_pause_is_long(quick: RunningApp) -> None:
    with quick.connect() as client:
        client.sendall(POST_ROLLOUT + b"transfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(40):
                client.sendall(b"1\r\n \r\n")
                time.sleep(0.05)
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"of an unknown number bytes received in" in answer
    assert b"the slowest allowed is 1000 bytes per second" in answer


def test_another_type_is_refused_with_the_one_that_is_taken(quick: RunningApp) -> None:
    for path, headers, reason in (
        ("/rollout/", {"content-type": "text/plain"}, "content-type 'text/plain'; allowed is application/json."),
        ("/session/", {"content-type": "application/x-www-form-urlencoded"}, "allowed is application/json"),
        ("/rollout/", {"content-encoding": "gzip"}, "content-encoding 'gzip'; send it uncompressed."),
    ):
        answer = httpx.post(f"{quick.url}{path}", content=b"{}", headers=headers, trust_env=False)
        assert (answer.status_code, reason in answer.json()["detail"]) == (415, True), answer.text


def test_too_many_rollouts_at_once_get_429_and_the_others_are_played(quick: RunningApp) -> None:
    quick.engine.seconds = 0.3
    statuses: list[int] = []

    def play() -> None:
        answer = httpx.post(f"{quick.url}/rollout/", json=rollout_body(), timeout=30, trust_env=False)
        statuses.append(answer.status_code)

    players = [threading.Thread(target=play) for _ in range(2)]
    try:
        for player in players:
            player.start()
        while quick.scheduler.games_in_flight < 2:
            time.sleep(0.01)
        refused = httpx.post(f"{quick.url}/rollout/", json=rollout_body(), trust_env=False)
    finally:
        quick.engine.seconds = 0.0
        for player in players:
            player.join(30)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    assert refused.json()["detail"] == (
        "rollout request: 2 are open already (2 of 127.0.0.1), allowed are 2 at once. Wait for one to end."
    )
    assert statuses == [200, 200]
    assert httpx.post(f"{quick.url}/rollout/", json=rollout_body(), trust_env=False).status_code == 200


# --- connections ---


def test_a_client_that_says_nothing_or_drips_half_a_head_is_hung_up_on(quick: RunningApp) -> None:
    for head in (b"", b"GET /health/ HTTP/1.1\r\nhost: localhost\r\n"):
        with quick.connect() as slow:
            start = time.monotonic()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                slow.sendall(head)
                while head and time.monotonic() - start < GENEROUS:
                    slow.sendall(b"a")
                    time.sleep(0.1)
            assert read_to_end(slow) == b""
            assert 0.3 < time.monotonic() - start < GENEROUS


def test_an_idle_connection_is_closed_after_its_answer_and_reused_before(quick: RunningApp) -> None:
    with quick.connect() as client:
        for _ in range(3):
            client.sendall(b"GET /health/ HTTP/1.1\r\nhost: localhost\r\n\r\n")
            time.sleep(0.2)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert read_to_end(client) == b""


def test_a_request_that_takes_longer_than_a_head_may_is_not_cut(quick: RunningApp) -> None:
    quick.engine.seconds = 1.0
    try:
        answer = httpx.post(f"{quick.url}/rollout/", json=rollout_body(), timeout=30.0, trust_env=False)
    finally:
        quick.engine.seconds = 0.0
    assert answer.status_code == 200
    assert answer.elapsed.total_seconds() > 2 * QUICK.head_seconds


def test_what_is_no_http_gets_a_4xx_and_the_next_client_is_served(quick: RunningApp) -> None:
    for sent in (
        b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"b" * (70 << 10),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n",
        b"GET /health/ HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5, 6\r\n\r\n",
        b"GET /h\xc3\xa4 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        POST_ROLLOUT + b"content-length: -1\r\n\r\n",
        POST_ROLLOUT + b"content-length: " + b"9" * 30 + b"\r\n\r\n",
        POST_ROLLOUT + b"transfer-encoding: gzip\r\n\r\n",
        POST_ROLLOUT + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnot a chunk size\r\n",
    ):
        with quick.connect() as client:
            client.sendall(sent)
            assert read_to_end(client).startswith(b"HTTP/1.1 4"), sent[:100]
        wait_until_free(quick)


def test_a_connection_over_the_cap_gets_503_and_far_more_are_dropped(quick: RunningApp) -> None:
    # Making a client takes a while, after which silent connections are hung up on.
    with httpx.Client(trust_env=False) as http, contextlib.ExitStack() as stack:
        held = [stack.enter_context(quick.connect()) for _ in range(QUICK.connections)]
        time.sleep(0.1)
        answer = http.get(f"{quick.url}/health/")
        assert answer.status_code == 503
        assert answer.json()["detail"] == "6 connections are open, allowed are 6. Close some, or try again later."
        more = [stack.enter_context(quick.connect()) for _ in range(2 * QUICK.connections)]
        assert read_to_end(more[-1]) == b""
        assert all(read_to_end(connection) == b"" for connection in held)
    wait_until_free(quick)


def open_at_the_server(app: RunningApp) -> int:
    """Count the connections whose server side is still open; looked at without reading from any of them."""
    connections = psutil.Process().net_connections("tcp")
    return sum(c.laddr.port == app.port and c.status == psutil.CONN_ESTABLISHED for c in connections)


@contextlib.contextmanager
def large_answer(app: RunningApp, *, receive_buffer: int) -> Iterator[tuple[socket.socket, int]]:
    """Ask for more than the kernel keeps for a client; yields the connection and the answer's bytes still to come."""
    wait_until_free(app)
    body = json.dumps(rollout_body(num_deals=1000, num_games=4)).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(("127.0.0.1", app.port))
        client.sendall(POST_ROLLOUT + b"content-length: %d\r\n\r\n" % len(body) + body)
        client.settimeout(300)
        head, _, start = client.recv(500).partition(b"\r\n\r\n")
        yield client, int(re.findall(rb"content-length: (\d+)", head)[0]) - len(start)


def test_a_client_that_does_not_read_its_answer_is_dropped_in_the_middle_of_it(quick: RunningApp) -> None:
    with large_answer(quick, receive_buffer=4096) as (deaf, length):
        deadline = time.monotonic() + GENEROUS
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while open_at_the_server(quick):
                assert time.monotonic() < deadline, "the answer is kept for a client that does not read"
                # What it sends meanwhile does not count as reading.
                deaf.sendall(b"G")
                time.sleep(0.1)
        assert len(read_to_end(deaf)) < length
    wait_until_free(quick)


def test_a_client_that_reads_slowly_gets_its_whole_answer(quick: RunningApp) -> None:
    with large_answer(quick, receive_buffer=1 << 16) as (slow, length):
        start = time.monotonic()
        while length > 0:
            chunk = slow.recv(1 << 17)
            assert chunk, f"cut {length} bytes before the end"
            length -= len(chunk)
            time.sleep(0.03)
        assert time.monotonic() - start > 2 * QUICK.head_seconds
        assert length == 0
    wait_until_free(quick)


# --- answers and logs ---


def test_a_reason_that_quotes_what_is_no_text_is_still_an_answer() -> None:
    assert json.loads(bytes(problem(422, "suite='\ud800'").body)) == {"detail": "suite='\\ud800'"}


def test_a_server_leaves_the_log_handlers_of_its_process_open(tmp_path: Path) -> None:
    # absl's, which open_spiel brings, closes the stream that it found when it was imported, pytest's own here.
    with contextlib.closing(logging.FileHandler(tmp_path / "run.log")) as handler:
        config = server_config(lambda scope, receive, send: None, Limits())  # type: ignore[arg-type]
        assert handler.stream is not None and config.ws == "none", "a websocket is a plain request"
