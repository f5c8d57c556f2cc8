"""Clients that break off, and neighbours of a rollout server.

The app is the real one on a real socket; its engine answers with fixed words. After each injection
the server serves what it served before, to the last bit.
"""

import contextlib
import json
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server import adapter_loader
from server_app import (
    JSON,
    OWNER,
    PLAYERS,
    RunningApp,
    adapter_bytes,
    rollout_body,
    running_app,
    session_body,
    upload_headers,
)
from waiting import wait_until

Injections = Callable[..., Any]

SERVED_VERSION = 5
WANTED = [f"{player}@{SERVED_VERSION}" for player in PLAYERS]
PATIENCE = 15.0
"""Seconds after which something counts as hanging; far above what anything here takes."""
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""A PID namespace of its own.

Like a container that shares /dev/shm, it sees none of our process numbers.
"""


def http_of(app: RunningApp, **options: Any) -> httpx.Client:
    """Return a client of one keep-alive connection."""
    return httpx.Client(base_url=app.url, trust_env=False, timeout=PATIENCE, **options)


def _served(app: RunningApp) -> dict[str, Any]:
    """Return everything that must not change.

    These are versions, receipts, files, what the engine holds, and how it plays.
    """
    receipts = {}
    handles = {}
    files = {}
    for name, adapter in app.store._served.items():
        receipts[name] = adapter.receipt
        handles[name] = adapter.lora
        for path in adapter.folder.iterdir():
            files[f"{name}/{path.name}"] = path.read_bytes()
    body = rollout_body(num_tasks=4, num_games=2, seats=WANTED)
    answer = httpx.post(f"{app.url}/rollout/", json=body, timeout=PATIENCE, trust_env=False)
    replies = []
    for episode in answer.json()["episodes"]:
        replies.append([(turn["reply_ids"], turn["logprobs"]) for turn in episode["turns"]])
    return {
        "versions": app.store.versions(),
        "receipts": receipts,
        "handles": handles,
        "files": files,
        "engine": dict(app.engine.loaded),
        "replies": replies,
    }


@dataclass
class GuardedServer:
    """A server that serves a version, and the check that it still serves exactly that."""

    app: RunningApp
    """The running app."""
    before: dict[str, Any]
    """What it served before the injections."""

    def check(self) -> None:
        """Check that nothing changed, nothing hangs and nothing piles up."""
        app = self.app
        is_idle = wait_until(lambda: not app.scheduler.games_in_flight, PATIENCE)
        assert is_idle, "games that nobody waits for are still played"
        health = httpx.get(f"{app.url}/health/", timeout=PATIENCE, trust_env=False)
        assert health.status_code == 200
        assert health.json()["status"] == "ok"
        assert _served(app) == self.before
        folders = [path for path in app.store.folder.path.iterdir() if path.is_dir()]
        assert len(folders) <= 2 * len(PLAYERS), f"uploads pile up: {folders}"
        log_lines = app.ring.since(0)[1]
        assert "Traceback" not in "\n".join(log_lines)


@contextlib.contextmanager
def guarded_server() -> Iterator[GuardedServer]:
    """Give a server with adapters of `SERVED_VERSION`, and check it at the end."""
    with running_app() as app:
        with http_of(app, headers=OWNER) as http:
            _serve_adapters(app, http)
        server = GuardedServer(app, _served(app))
        yield server
        server.check()


def _serve_adapters(app: RunningApp, http: httpx.Client) -> None:
    """Open a session, upload an adapter for each player and commit them."""
    version = {"version": SERVED_VERSION}
    answer = http.post("/session/", json=session_body(app.identity))
    assert answer.status_code == 200, answer.text
    for number, name in enumerate(PLAYERS):
        body = adapter_bytes(0.5 + number)
        answer = http.put(
            f"/adapters/{name}", params=version, content=body, headers=upload_headers(body)
        )
        assert answer.status_code == 200, answer.text
    answer = http.post("/adapters/commit", params=version)
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def door() -> Iterator[GuardedServer]:
    with guarded_server() as server:
        yield server


def _request(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return the bytes of an HTTP request.

    Args:
        method: E.g. "POST".
        path: Path and query.
        body: The body, whose length becomes a header.
        headers: Headers beside those two that every request has.
    """
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    for name, value in headers.items():
        lines.append(f"{name}: {value}")
    head = "\r\n".join(lines)
    return head.encode("latin-1") + b"\r\n\r\n" + body


def _requests(app: RunningApp) -> list[bytes]:
    """Return valid requests of all kinds.

    The upload, the last one, is of a version that is not served.
    """
    session = json.dumps(session_body(app.identity)).encode()
    rollout = json.dumps(rollout_body(num_tasks=2)).encode()
    upload = adapter_bytes(3.0)
    return [
        _request("GET", "/health/", b"", {}),
        _request("GET", "/log/?after=0", b"", {}),
        _request("POST", "/session/", session, {**OWNER, **JSON}),
        _request("POST", "/session/heartbeat", b"", OWNER),
        _request("POST", "/rollout/", rollout, JSON),
        _request(
            "PUT", "/adapters/player_0?version=6", upload, {**OWNER, **upload_headers(upload)}
        ),
    ]


def _reset_on_close(client: socket.socket) -> None:
    """Let the socket be closed by a TCP reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_requests_cut_at_a_random_byte_leave_nothing(
    door: GuardedServer, injection: Injections
) -> None:
    row = injection(
        "valid requests cut at a random byte, half with a reset",
        short=200,
        long=5000,
        lost="the request",
    )
    requests = _requests(door.app)
    for number in row:
        request = row.rng.choice(requests)
        with door.app.connect(PATIENCE) as client:
            client.sendall(request[: row.rng.randrange(len(request))])
            if number % 2 == 1:
                _reset_on_close(client)
            if number % 7 == 0:
                time.sleep(0.002)
    door.check()


_MAKE_FOLDER = """
import pathlib
import sys

from hanabi_grpo.server.adapter_loader import OwnedFolder

print(OwnedFolder(pathlib.Path(sys.argv[1])).path)
"""
"""Makes a server's folder for adapters below the folder that it is given, and ends at once."""


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def test_a_server_in_another_pid_namespace_leaves_the_adapters_of_a_living_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _can_unshare():
        pytest.skip("this machine lets no user make a PID namespace")
    monkeypatch.setattr(adapter_loader, "adapter_home", lambda: tmp_path)
    command = [*UNSHARE, sys.executable, "-c", _MAKE_FOLDER, str(tmp_path)]
    with guarded_server() as server:
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        server.check()
        left_behind = Path(other.stdout.strip())
        assert left_behind.is_dir()
        assert left_behind != server.app.store.folder.path
        subprocess.run(command, capture_output=True, check=True)
        assert not left_behind.exists(), (
            "what a killed server left is removed across namespaces too"
        )


def test_what_is_public_of_a_run_takes_nothing_from_its_trainer() -> None:
    with guarded_server() as server, http_of(server.app) as http:
        session = session_body(server.app.identity)
        theft = {**session, "trainer_id": "7" * 32, "secret": "6" * 64}
        refused = http.post("/session/", json={**theft, "run_id": "another"}).json()["detail"]
        public = refused
        for path in ("/identity/", "/log/", "/health/"):
            public += http.get(path).text
        assert session["secret"] not in public
        assert session["trainer_id"] not in public
        guessed_secret = public_run(session["run_id"]).ljust(64, "0")
        for body in (theft, {**theft, "secret": guessed_secret}):
            answer = http.post("/session/", json=body)
            assert answer.status_code == 409
            assert "not the secret of its folder" in answer.json()["detail"]
        headers = session_headers(session["run_id"], "7" * 32)
        for method, path in (("POST", "/adapters/commit?version=5"), ("DELETE", "/session/")):
            answer = http.request(method, path, headers=headers)
            assert answer.status_code == 409
            assert session["trainer_id"] not in answer.text
