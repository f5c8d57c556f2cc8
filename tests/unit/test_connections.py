"""Connections: idle and slow ones are ended, and many of them keep nobody out."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.server import connections, door
from server_app import (
    PEFT_CONFIG,
    POST_ROLLOUT,
    RunningApp,
    adapter_bytes,
    open_session,
    read_to_end,
    rollout_body,
    running_app,
    upload_headers,
)

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningApp]:
    """A server whose time limits are short."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(door, "_BODY_SECONDS", 0.5)
    with running_app() as app:
        yield app


def drip(connection: socket.socket, pieces: Iterator[bytes]) -> float:
    """Send a piece every 0.1 s until the server has had enough; returns after how many seconds."""
    start = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.1)
            if time.monotonic() - start > 10:
                break
    return time.monotonic() - start


def is_well(connection: socket.socket) -> bool:
    """Ask for the server's health on a connection."""
    connection.sendall(HEALTH)
    answer = b""
    while piece := connection.recv(65536):
        answer += piece
        if b"uptime_s" in answer:
            break
    return answer.startswith(b"HTTP/1.1 200")


def ends_by_itself(connection: socket.socket) -> float:
    """Wait for the server to close a connection; returns after how many seconds it did."""
    start = time.monotonic()
    assert read_to_end(connection) == b""
    return time.monotonic() - start


def test_a_connection_that_says_nothing_or_half_a_head_is_closed(hurried: RunningApp) -> None:
    for begin in (b"", b"GET /health HTTP/1.1\r\nhost: local"):
        with hurried.connect() as connection:
            connection.sendall(begin)
            assert 0.8 < ends_by_itself(connection) < 4
    with hurried.connect() as connection:
        # Single bytes do not stop the clock.
        head = (bytes([byte]) for byte in b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 100)
        assert drip(connection, head) < 3


def test_an_idle_connection_is_closed_after_its_answer_and_not_in_a_request(
    hurried: RunningApp,
) -> None:
    hurried.engine.seconds = 0.4
    with httpx.Client(base_url=hurried.url, trust_env=False, timeout=20) as client:
        start = time.monotonic()
        assert client.post("/rollout/", json=rollout_body()).status_code == 200
        assert time.monotonic() - start > 1.0, "longer than an idle connection may live"
    with hurried.connect() as connection:
        for _ in range(4):
            # An answered request begins a new time.
            assert is_well(connection)
            time.sleep(0.4)
        assert ends_by_itself(connection) < 3


def test_a_body_that_stops_or_drips_is_408_with_retry_after(hurried: RunningApp) -> None:
    head = POST_ROLLOUT + b"content-length: 100000\r\n\r\n"
    with hurried.connect() as connection:
        connection.sendall(head + b"{" * 10)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"no data for 0.5 s after 10 bytes of the body" in answer
    assert b"retry-after: " in answer
    with hurried.connect() as connection:
        connection.sendall(head)
        assert drip(connection, iter([b"{"] * 90)) < 5
    with httpx.Client(base_url=hurried.url, trust_env=False) as client:
        assert client.get("/health").status_code == 200


LINE = "x" * 4000


def test_a_client_that_does_not_read_its_answer_loses_it_and_a_slow_one_does_not(
    hurried: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 1.0)
    for _ in range(5000):
        # 20 MB, more than the kernel keeps for a client.
        hurried.ring.emit(logging.makeLogRecord({"msg": LINE}))
    sizes = []
    for pause in (5.0, 0.0):
        with hurried.connect() as connection:
            connection.sendall(HEALTH.replace(b"/health", b"/log/"))
            time.sleep(pause)
            size = 0
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(256 << 10):
                    size += len(piece)
                    # In all longer than a connection may be idle.
                    time.sleep(0.03)
        sizes.append(size)
    cut, whole = sizes
    assert cut < 5000 * len(LINE) < whole


def test_the_longest_idle_connection_makes_room_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(connections, "_MIN_CONNECTIONS", 8)
    with running_app() as app, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(app.connect()) for _ in range(8)]
        newest = stack.enter_context(app.connect())
        assert is_well(newest)
        assert ends_by_itself(idle[0]) < 3
        assert is_well(idle[-1])


def test_where_all_connections_have_requests_others_are_503_but_the_trainer_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(connections, "_MIN_CONNECTIONS", 3)
    with running_app() as app, contextlib.ExitStack() as stack:
        trainer = RolloutClient(app.url)
        open_session(trainer, app)
        headers = trainer.headers
        # Its connection is not among the three.
        trainer._http.close()
        app.engine.seconds = 0.5
        for _ in range(3):
            busy = stack.enter_context(app.connect())
            body = httpx.Request("POST", app.url, json=rollout_body()).content
            busy.sendall(POST_ROLLOUT + b"content-length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 10
        while app.scheduler.games_in_flight < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        with app.connect() as connection:
            connection.sendall(HEALTH)
            answer = read_to_end(connection)
        beat = httpx.post(f"{app.url}/session/heartbeat", headers=headers, trust_env=False)
        assert beat.status_code == 200
        assert app.scheduler.games_in_flight == 3
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 5" in answer
    assert b"3 connections are open, the maximum of this server" in answer


def test_an_upload_that_finds_no_descriptor_or_space_is_503_and_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "RETRY_SECONDS", 1)
    write = Path.write_bytes
    faults = [errno.EMFILE, errno.ENOSPC]

    def fail_twice(path: Path, data: bytes) -> int:
        if path.name == "adapter_model.safetensors" and faults:
            number = faults.pop(0)
            raise OSError(number, os.strerror(number))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", fail_twice)
    with running_app() as app, RolloutClient(app.url) as client:
        guest = client.upload_guest(1, adapter_bytes(), PEFT_CONFIG)
        assert guest
        assert not faults
        faults.append(errno.EMFILE)
        body = adapter_bytes(0.75)
        answer = httpx.put(
            f"{app.url}/frozen/?version=1",
            content=body,
            headers=upload_headers(body),
            trust_env=False,
        )
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert (
            "(Too many open files); adapters already served are not affected. End clients that"
            in answer.text
        )


def test_a_server_may_open_as_many_files_as_the_machine_allows() -> None:
    code = (
        "import resource; from hanabi_grpo.processes import raise_descriptor_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200)); raise_descriptor_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "(200, 200)"


class StalledTransport(asyncio.Transport):
    """A connection whose client has stopped reading."""

    unread = 9000

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.was_aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.was_aborted.is_set()

    def abort(self) -> None:
        self.was_aborted.set()


def test_a_client_that_stops_reading_near_the_end_of_its_answer_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is left is less than what the timer of slow readers watches.
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)

    async def stall() -> None:
        config = uvicorn.Config(
            lambda: None, http=connections.limited_protocol(), ws="none", log_config=None
        )
        config.load()
        protocol = config.http_protocol_class(
            config=config, server_state=uvicorn.server.ServerState(), app_state={}
        )
        transport = StalledTransport()
        protocol.connection_made(transport)
        protocol.pause_writing()
        protocol.resume_writing()
        await asyncio.wait_for(transport.was_aborted.wait(), 5)

    asyncio.run(stall())
