"""A server that serves a version while strangers knock, and the check that nothing of it changed."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from hanabi_grpo.server.limits import Limits
from server_app import (
    OWNER,
    PLAYERS,
    RunningApp,
    WordEngine,
    adapter_bytes,
    rollout_body,
    running_app,
    session_body,
    upload_headers,
)

SERVED_VERSION = 5
PATIENCE = 15.0
"""Seconds after which something counts as hanging; far above what anything here takes."""


def http_of(app: RunningApp, **other: Any) -> httpx.Client:
    """A client of one keep-alive connection."""
    return httpx.Client(base_url=app.url, trust_env=False, timeout=PATIENCE, **other)


def serve_a_version(app: RunningApp) -> None:
    with http_of(app, headers=OWNER) as http:
        assert http.post("/session/", json=session_body(app.identity)).status_code == 200
        for number, name in enumerate(PLAYERS):
            body = adapter_bytes(0.5 + number)
            put = http.put(
                f"/adapters/{name}", params={"version": SERVED_VERSION}, content=body, headers=upload_headers(body)
            )
            assert put.status_code == 200, put.text
        assert http.post("/adapters/commit", params={"version": SERVED_VERSION}).status_code == 200


def _served(app: RunningApp) -> dict[str, Any]:
    """Everything that must not change: versions, receipts, files, what the engine holds, and how it plays."""
    held = app.store._served
    wanted = [f"{player}@{SERVED_VERSION}" for player in PLAYERS]
    body = rollout_body(num_deals=4, num_games=2, seats=wanted)
    answer = httpx.post(f"{app.url}/rollout/", json=body, timeout=PATIENCE, trust_env=False).json()
    return {
        "versions": app.store.versions(),
        "receipts": {name: one.receipt for name, one in held.items()},
        "handles": {name: one.lora for name, one in held.items()},
        "files": {
            f"{name}/{path.name}": path.read_bytes() for name, one in held.items() for path in one.folder.iterdir()
        },
        "engine": dict(app.engine.loaded),
        "replies": [[turn["reply_ids"], turn["logprobs"]] for one in answer["episodes"] for turn in one["turns"]],
    }


@dataclass
class Guarded:
    """A server that serves a version, and the check that it still serves exactly that."""

    app: RunningApp
    before: dict[str, Any]

    def check(self) -> None:
        """Nothing changed, nothing hangs, nothing piles up."""
        app = self.app
        deadline = time.monotonic() + PATIENCE
        while app.scheduler.games_in_flight:
            assert time.monotonic() < deadline, "games of nobody are still played"
            time.sleep(0.02)
        health = httpx.get(f"{app.url}/health/", timeout=PATIENCE, trust_env=False)
        while health.status_code == 503 and "connections" in health.text:
            assert time.monotonic() < deadline, "connections of clients that left are still counted"
            time.sleep(0.05)
            health = httpx.get(f"{app.url}/health/", timeout=PATIENCE, trust_env=False)
        assert health.status_code == 200 and health.json()["status"] == "ok"
        assert _served(app) == self.before
        folders = [path for path in app.store.folder.path.iterdir() if path.is_dir()]
        assert len(folders) <= 2 * len(PLAYERS), f"uploads pile up: {folders}"
        assert "Traceback" not in "\n".join(app.ring.since(0)[1])


@contextlib.contextmanager
def guarded(limits: Limits | None = None, engine: WordEngine | None = None) -> Iterator[Guarded]:
    with running_app(limits=limits, engine=engine) as app:
        serve_a_version(app)
        one = Guarded(app, _served(app))
        yield one
        one.check()


def request_bytes(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
