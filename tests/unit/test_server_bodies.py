"""Request bodies that are too large, too slow, of another type, or too many."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from hanabi_grpo.server.limits import Limits
from server_app import JSON, POST_ROLLOUT, RunningApp, read_to_end, rollout_body, running_app

QUICK = Limits(
    chunk_seconds=0.4,
    body_bytes_per_second=1000,
    rollout_bytes=20_000,
    adapter_bytes=10_000,
    other_bytes=5_000,
    rollouts_at_once=2,
)


@pytest.fixture(scope="module")
def quick() -> Iterator[RunningApp]:
    with running_app(limits=QUICK) as app:
        yield app


@pytest.mark.parametrize(
    ("method", "path", "what", "limit"),
    [
        ("POST", "/rollout/", "rollout request", 20_000),
        ("PUT", "/adapters/player_0?version=1", "adapter upload", 10_000),
        ("POST", "/session/", "request body", 5_000),
        ("GET", "/health/", "request body", 5_000),
        ("POST", "/no/such/route", "request body", 5_000),
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


def test_a_body_without_a_length_is_refused_when_it_passes_the_limit(quick: RunningApp) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 1000

    for path, limit in (("/rollout/", 20_000), ("/session/", 5_000)):
        answer = httpx.post(f"{quick.url}{path}", content=chunks(), headers=JSON, trust_env=False)
        assert answer.status_code == 413
        assert f"more than {limit} bytes; allowed are at most {limit}" in answer.json()["detail"]


def test_a_large_refused_body_still_gets_its_reason_and_the_connection_lives_on(quick: RunningApp) -> None:
    with httpx.Client(base_url=quick.url, trust_env=False) as client:
        answer = client.post("/rollout/", content=b"x" * (8 << 20), headers=JSON)
        assert answer.status_code == 413
        assert client.get("/health/").status_code == 200


def test_a_body_that_stops_coming_gets_408_with_what_came_and_what_was_expected(quick: RunningApp) -> None:
    for path in ("/rollout/", "/session/"):
        with quick.connect() as client:
            client.sendall(
                POST_ROLLOUT.replace(b"/rollout/", path.encode()) + b"content-length: 1000\r\n\r\n" + b"{" * 10
            )
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


@pytest.mark.parametrize(
    ("path", "headers", "problem"),
    [
        (
            "/rollout/",
            {"content-type": "text/plain"},
            "rollout request: content-type 'text/plain'; allowed is application/",
        ),
        ("/rollout/", {"content-type": "multipart/form-data; boundary=x"}, "content-type 'multipart/form-data'"),
        ("/session/", {"content-type": "application/x-www-form-urlencoded"}, "allowed is application/json"),
        ("/rollout/", {"content-encoding": "gzip"}, "content-encoding 'gzip'; send it uncompressed."),
    ],
)
def test_another_type_is_refused_with_the_one_that_is_taken(
    quick: RunningApp, path: str, headers: dict[str, str], problem: str
) -> None:
    answer = httpx.post(f"{quick.url}{path}", content=b"{}", headers=headers, trust_env=False)
    assert answer.status_code == 415
    assert problem in answer.json()["detail"]


def test_too_many_rollouts_at_once_get_429_and_the_others_are_played(quick: RunningApp) -> None:
    quick.engine.seconds = 0.3
    statuses: list[int] = []

    def play() -> None:
        statuses.append(
            httpx.post(f"{quick.url}/rollout/", json=rollout_body(), timeout=30, trust_env=False).status_code
        )

    players = [threading.Thread(target=play) for _ in range(2)]
    try:
        for player in players:
            player.start()
        time.sleep(0.2)
        refused = httpx.post(f"{quick.url}/rollout/", json=rollout_body(), trust_env=False)
        assert httpx.get(f"{quick.url}/health/", trust_env=False).status_code == 200
    finally:
        quick.engine.seconds = 0.0
        for player in players:
            player.join(30)
    assert refused.status_code == 429
    assert refused.json()["detail"] == (
        "rollout request: 2 are open already (2 of 127.0.0.1), allowed are 2 at once. Wait for one to end."
    )
    assert refused.headers["retry-after"] == "5"
    assert statuses == [200, 200]
    assert httpx.post(f"{quick.url}/rollout/", json=rollout_body(), trust_env=False).status_code == 200


def test_the_answer_does_not_depend_on_how_the_body_is_cut(quick: RunningApp) -> None:
    body = json.dumps(rollout_body(num_deals=2)).encode()

    def bytewise() -> Iterator[bytes]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    whole = httpx.post(f"{quick.url}/rollout/", content=body, headers=JSON, trust_env=False)
    pieces = httpx.post(f"{quick.url}/rollout/", content=bytewise(), headers=JSON, trust_env=False)
    assert whole.status_code == pieces.status_code == 200
    assert whole.json()["episodes"] == pieces.json()["episodes"]
