"""Clients that connect and say nothing, half of something, or too much."""

import contextlib
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from hanabi_grpo.server.connections import server_config
from hanabi_grpo.server.limits import Limits
from server_app import POST_ROLLOUT, RunningApp, running_app

QUICK = Limits(head_seconds=0.5, chunk_seconds=0.5, connections=4)
GENEROUS = 8.0
"""Seconds after which a test gives up; far above what it waits for."""


@pytest.fixture(scope="module")
def quick() -> Iterator[RunningApp]:
    with running_app(limits=QUICK) as app:
        yield app


def read_to_end(connection: socket.socket) -> bytes:
    connection.settimeout(GENEROUS)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


def wait_until_free(app: RunningApp) -> None:
    """Wait until connections of an earlier test are gone."""
    deadline = time.monotonic() + GENEROUS
    while httpx.get(f"{app.url}/health/", trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_client_that_connects_and_says_nothing_is_hung_up_on(quick: RunningApp) -> None:
    with quick.connect() as silent:
        start = time.monotonic()
        assert read_to_end(silent) == b""
        assert 0.3 < time.monotonic() - start < GENEROUS


def test_a_client_that_drips_half_a_head_gets_408_although_bytes_keep_coming(quick: RunningApp) -> None:
    with quick.connect() as dripping:
        dripping.sendall(b"GET /health/ HTTP/1.1\r\nhost: localhost\r\n")
        dripping.settimeout(0.1)
        received, start = b"", time.monotonic()
        while time.monotonic() - start < GENEROUS:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                dripping.sendall(b"a")
            try:
                received += dripping.recv(65536)
                if received:
                    break
            except TimeoutError:
                continue
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b"the request's head was not complete after 0.5 s" in received + read_to_end(dripping)


def test_an_idle_connection_is_closed_after_its_answer_and_reused_before(quick: RunningApp) -> None:
    with quick.connect() as client:
        for _ in range(3):
            client.sendall(b"GET /health/ HTTP/1.1\r\nhost: localhost\r\n\r\n")
            time.sleep(0.2)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert read_to_end(client) == b""


def test_a_request_that_takes_longer_than_a_head_may_is_not_cut(quick: RunningApp) -> None:
    from server_app import rollout_body

    quick.engine.seconds = 1.0
    try:
        answer = httpx.post(f"{quick.url}/rollout/", json=rollout_body(), timeout=30.0, trust_env=False)
    finally:
        quick.engine.seconds = 0.0
    assert answer.status_code == 200
    assert answer.elapsed.total_seconds() > 2 * QUICK.head_seconds


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"b" * (70 << 10), 431, b"65536 bytes of headers"),
        (b"GET /" + b"a" * (70 << 10), 431, b"65536 bytes of headers"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n",
            400,
            b"not a valid HTTP request",
        ),
        (b"GET /health/ HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5, 6\r\n\r\n", 400, b"not a valid HTTP request"),
        (b"GET /h\xc3\xa4 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, b"not a valid HTTP request"),
        (POST_ROLLOUT + b"content-length: -1\r\n\r\n", 400, b"not a valid HTTP request"),
        (POST_ROLLOUT + b"content-length: " + b"9" * 30 + b"\r\n\r\n", None, b""),
        (POST_ROLLOUT + b"transfer-encoding: gzip\r\n\r\n", 501, b"not a valid HTTP request"),
    ],
)
def test_what_is_no_http_gets_a_4xx_and_the_next_client_is_served(
    quick: RunningApp, sent: bytes, status: int | None, reason: bytes
) -> None:
    with quick.connect() as client:
        client.sendall(sent)
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 4" if status is None else f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert reason in answer
    wait_until_free(quick)


def test_a_broken_chunk_in_a_body_ends_the_connection_and_nothing_else(quick: RunningApp) -> None:
    with quick.connect() as client:
        client.sendall(POST_ROLLOUT + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        time.sleep(0.1)
        client.sendall(b"not a chunk size\r\n")
        assert read_to_end(client).startswith(b"HTTP/1.1 400 ")
    wait_until_free(quick)


def test_a_connection_over_the_cap_gets_503_and_far_more_are_dropped(quick: RunningApp) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(quick.connect()) for _ in range(QUICK.connections)]
        time.sleep(0.1)
        answer = httpx.get(f"{quick.url}/health/", trust_env=False)
        assert answer.status_code == 503
        assert answer.json()["detail"] == "4 connections are open, allowed are 4. Close some, or try again later."
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
    from server_app import rollout_body

    wait_until_free(app)
    body = json.dumps(rollout_body(num_deals=1000, num_games=4)).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(("127.0.0.1", app.port))
        client.sendall(POST_ROLLOUT + b"content-length: %d\r\n\r\n" % len(body) + body)
        client.settimeout(60)
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


def test_a_server_leaves_the_log_handlers_of_its_process_open(tmp_path: Path) -> None:
    # absl's, which open_spiel brings, closes the stream that it found when it was imported, pytest's own here.
    with contextlib.closing(logging.FileHandler(tmp_path / "run.log")) as handler:
        server_config(lambda scope, receive, send: None, Limits())  # type: ignore[arg-type]
        assert handler.stream is not None
