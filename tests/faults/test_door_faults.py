"""Clients that break off and neighbours of a rollout server: the real app on a real socket, an
engine of words.

After each injection the server serves what it served before, to the last bit.
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
"""A PID namespace of its own: as a container that shares /dev/shm, it sees none of our process
numbers.
"""


def http_of(app: RunningApp, **other: Any) -> httpx.Client:
    """A client of one keep-alive connection."""
    return httpx.Client(base_url=app.url, trust_env=False, timeout=PATIENCE, **other)


def _served(app: RunningApp) -> dict[str, Any]:
    """Everything that must not change: versions, receipts, files, what the engine holds, and how it
    plays.
    """
    held = app.store._served
    body = rollout_body(num_tasks=4, num_games=2, seats=WANTED)
    answer = httpx.post(f"{app.url}/rollout/", json=body, timeout=PATIENCE, trust_env=False).json()
    return {
        "versions": app.store.versions(),
        "receipts": {name: one.receipt for name, one in held.items()},
        "handles": {name: one.lora for name, one in held.items()},
        "files": {
            f"{name}/{path.name}": path.read_bytes()
            for name, one in held.items()
            for path in one.folder.iterdir()
        },
        "engine": dict(app.engine.loaded),
        "replies": [
            [turn["reply_ids"], turn["logprobs"]]
            for one in answer["episodes"]
            for turn in one["turns"]
        ],
    }


@dataclass
class Guarded:
    """A server that serves a version, and the check that it still serves exactly that."""

    app: RunningApp
    before: dict[str, Any]

    def check(self) -> None:
        """Nothing changed, nothing hangs, nothing piles up."""
        app = self.app
        assert wait_until(lambda: not app.scheduler.games_in_flight, PATIENCE), (
            "games of nobody are still played"
        )
        health = httpx.get(f"{app.url}/health/", timeout=PATIENCE, trust_env=False)
        assert health.status_code == 200 and health.json()["status"] == "ok"
        assert _served(app) == self.before
        folders = [path for path in app.store.folder.path.iterdir() if path.is_dir()]
        assert len(folders) <= 2 * len(PLAYERS), f"uploads pile up: {folders}"
        assert "Traceback" not in "\n".join(app.ring.since(0)[1])


@contextlib.contextmanager
def guarded() -> Iterator[Guarded]:
    with running_app() as app:
        with http_of(app, headers=OWNER) as http:
            assert http.post("/session/", json=session_body(app.identity)).status_code == 200
            for number, name in enumerate(PLAYERS):
                body, version = adapter_bytes(0.5 + number), {"version": SERVED_VERSION}
                put = http.put(
                    f"/adapters/{name}", params=version, content=body, headers=upload_headers(body)
                )
                assert put.status_code == 200, put.text
            assert (
                http.post("/adapters/commit", params={"version": SERVED_VERSION}).status_code == 200
            )
        one = Guarded(app, _served(app))
        yield one
        one.check()


@pytest.fixture(scope="module")
def door() -> Iterator[Guarded]:
    with guarded() as one:
        yield one


def _request(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _requests(app: RunningApp) -> list[bytes]:
    """Valid requests of all kinds; the upload, the last one, is of a version that is not served."""
    upload = adapter_bytes(3.0)
    return [
        _request("GET", "/health/", b"", {}),
        _request("GET", "/log/?after=0", b"", {}),
        _request(
            "POST", "/session/", json.dumps(session_body(app.identity)).encode(), {**OWNER, **JSON}
        ),
        _request("POST", "/session/heartbeat", b"", OWNER),
        _request("POST", "/rollout/", json.dumps(rollout_body(num_tasks=2)).encode(), JSON),
        _request(
            "PUT", "/adapters/player_0?version=6", upload, {**OWNER, **upload_headers(upload)}
        ),
    ]


def test_requests_cut_at_a_random_byte_leave_nothing(door: Guarded, injection: Injections) -> None:
    row = injection(
        "valid requests cut at a random byte, half with a reset",
        short=200,
        long=5000,
        lost="the request",
    )
    requests = _requests(door.app)
    for number in row:
        whole = row.rng.choice(requests)
        with door.app.connect(PATIENCE) as client:
            client.sendall(whole[: row.rng.randrange(len(whole))])
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 7 == 0:
                time.sleep(0.002)
    door.check()


def test_a_server_in_another_pid_namespace_leaves_the_adapters_of_a_living_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (
        not shutil.which("unshare")
        or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
    ):
        pytest.skip("this machine lets no user make a PID namespace")
    monkeypatch.setattr(adapter_loader, "adapter_home", lambda: tmp_path)
    start = "import sys, pathlib; from hanabi_grpo.server.adapter_loader import OwnedFolder as F; "
    with guarded() as one:
        again = [
            sys.executable,
            "-c",
            start + "print(F(pathlib.Path(sys.argv[1])).path)",
            str(tmp_path),
        ]
        other = subprocess.run([*UNSHARE, *again], capture_output=True, text=True, check=True)
        one.check()
        killed = Path(other.stdout.strip())
        assert killed.is_dir() and killed != one.app.store.folder.path
        subprocess.run([*UNSHARE, *again], capture_output=True, check=True)
        assert not killed.exists(), "what a killed server left is removed across namespaces too"


def test_what_is_public_of_a_run_takes_nothing_from_its_trainer() -> None:
    with guarded() as one, http_of(one.app) as http:
        mine = session_body(one.app.identity)
        theft = {**mine, "trainer_id": "7" * 32, "secret": "6" * 64}
        refused = http.post("/session/", json={**theft, "run_id": "another"}).json()["detail"]
        public = (
            http.get("/identity/").text
            + http.get("/log/").text
            + http.get("/health/").text
            + refused
        )
        assert mine["secret"] not in public and mine["trainer_id"] not in public
        for body in (theft, {**theft, "secret": public_run(mine["run_id"]).ljust(64, "0")}):
            answer = http.post("/session/", json=body)
            assert (
                answer.status_code == 409
                and "not the secret of its folder" in answer.json()["detail"]
            )
        named = session_headers(mine["run_id"], "7" * 32)
        for method, path in (("POST", "/adapters/commit?version=5"), ("DELETE", "/session/")):
            answer = http.request(method, path, headers=named)
            assert answer.status_code == 409 and mine["trainer_id"] not in answer.text
