"""Strangers and neighbours at the rollout server's door, many at once: the real app with its limits, on a real socket.

One that drips, or sends too much, or a wrong key, is the unit tests' (test_server_door). The engine is one of words
(`server_app.WordEngine`). After each drill the server serves what it served before, to the last bit.
"""

import contextlib
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server import adapter_loader
from hanabi_grpo.server.door import Limits
from mutations import mutate_rollout, mutate_upload
from server_app import (
    JSON,
    OWNER,
    PEFT_CONFIG,
    PLAYERS,
    POST_ROLLOUT,
    RunningApp,
    adapter_bytes,
    read_to_end,
    rollout_body,
    running_app,
    session_body,
    upload_headers,
)

Drills = Callable[..., Any]

SERVED_VERSION = 5
WANTED = [f"{player}@{SERVED_VERSION}" for player in PLAYERS]
PATIENCE = 15.0
"""Seconds after which something counts as hanging; far above what anything here takes."""
GROWTH = 30 << 20
"""Bytes; what a leak of a few kilobytes a request would exceed in the long form."""
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""A PID namespace of its own: as a container that shares /dev/shm, it sees none of our process numbers."""


def http_of(app: RunningApp, **other: Any) -> httpx.Client:
    """A client of one keep-alive connection."""
    return httpx.Client(base_url=app.url, trust_env=False, timeout=PATIENCE, **other)


def _served(app: RunningApp) -> dict[str, Any]:
    """Everything that must not change: versions, receipts, files, what the engine holds, and how it plays."""
    held = app.store._served
    body = rollout_body(num_deals=4, num_games=2, seats=WANTED)
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
def guarded(limits: Limits | None = None) -> Iterator[Guarded]:
    with running_app(limits=limits) as app:
        with http_of(app, headers=OWNER) as http:
            assert http.post("/session/", json=session_body(app.identity)).status_code == 200
            for number, name in enumerate(PLAYERS):
                body, version = adapter_bytes(0.5 + number), {"version": SERVED_VERSION}
                put = http.put(f"/adapters/{name}", params=version, content=body, headers=upload_headers(body))
                assert put.status_code == 200, put.text
            assert http.post("/adapters/commit", params={"version": SERVED_VERSION}).status_code == 200
        one = Guarded(app, _served(app))
        yield one
        one.check()


@pytest.fixture(scope="module")
def door() -> Iterator[Guarded]:
    """One server with the real limits, for all drills that need no shorter times."""
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
        _request("POST", "/session/", json.dumps(session_body(app.identity)).encode(), {**OWNER, **JSON}),
        _request("POST", "/session/heartbeat", b"", OWNER),
        _request("POST", "/rollout/", json.dumps(rollout_body(num_deals=2)).encode(), JSON),
        _request("PUT", "/adapters/player_0?version=6", upload, {**OWNER, **upload_headers(upload)}),
    ]


# --- connections ---


def test_connections_that_stay_half_open_do_not_stop_the_others(drill: Drills) -> None:
    row = drill("half-open connections, all held", short=100, long=1000, lost="new connections, 503, while over 256")
    beginnings = [b"", b"G", b"GET /health/ HTTP/1.1\r\nhost: localhost\r\n", b"POST /rollout/ HTTP/1.1\r\ncontent-le"]
    beginnings.append(POST_ROLLOUT + b"content-length: 1000\r\n\r\n{")
    limits = Limits(head_seconds=4.0, chunk_seconds=4.0)
    with guarded(limits) as one, contextlib.ExitStack() as stack, http_of(one.app) as http:
        answered = 0
        for number in row:
            half = stack.enter_context(one.app.connect())
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                half.sendall(beginnings[number % len(beginnings)])
            if number % 10 == 9:
                # The connection of a trainer that was there before.
                assert http.get("/health/").status_code == 200
                with contextlib.suppress(httpx.TransportError):
                    new = httpx.get(f"{one.app.url}/health/", timeout=PATIENCE, trust_env=False)
                    assert new.status_code == 200 or "connections are open" in new.json()["detail"]
                    answered += new.status_code == 200
        assert answered >= min(row.times, 200) / 10, "while fewer than 256 are open, everybody is let in"


def test_requests_cut_or_changed_at_random_bytes_get_an_error_or_a_hang_up_and_leave_nothing(
    door: Guarded, drill: Drills
) -> None:
    row = drill("valid requests cut at a random byte, half with a reset", short=200, long=5000, lost="the request")
    requests = _requests(door.app)
    for number in row:
        whole = row.rng.choice(requests)
        with door.app.connect(PATIENCE) as client:
            client.sendall(whole[: row.rng.randrange(len(whole))])
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 7 == 0:
                time.sleep(0.002)
    row = drill("random bytes, and requests with random bytes in them", short=200, long=5000, lost="the request")
    for number in row:
        if number % 2:
            sent = row.rng.randbytes(row.rng.choice((1, 20, 300, 5000))) + b"\r\n\r\n"
        else:
            changed = bytearray(row.rng.choice(requests[:4]))
            head = changed.index(b"\r\n\r\n")
            for _ in range(row.rng.randrange(1, 6)):
                changed[row.rng.randrange(head)] = row.rng.randrange(256)
            sent = bytes(changed)
        with door.app.connect(PATIENCE) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            answer = read_to_end(client)
            assert not answer.startswith(b"HTTP/1.1 5"), (answer[:200], sent[:200])
    door.check()


# --- what is nearly right ---


def _fire(door: Guarded, row: Any, send: Callable[[int], httpx.Response]) -> None:
    """Send requests of which none may be answered by a fault, change what is served, or cost memory."""
    process, before, statuses = psutil.Process(), 0, Counter[int]()
    for number in row:
        if number == row.times // 3:
            before = process.memory_info().rss
        answer = send(number)
        statuses[answer.status_code] += 1
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        assert answer.status_code == 200 or answer.json()["detail"]
        if number % 250 == 249:
            door.check()
    door.check()
    growth = process.memory_info().rss - before
    assert statuses[422] > row.times / 10, f"the checks behind the headers were not reached: {statuses}"
    assert growth < GROWTH
    counts = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    row.lost = f"the refused ones: {counts}; {growth / 2**20:.0f} MiB more memory"


def test_mutated_adapter_uploads_change_nothing(door: Guarded, drill: Drills) -> None:
    row = drill("mutated adapter uploads", short=500, long=10_000)
    valid = adapter_bytes(2.0)
    with http_of(door.app, headers=OWNER) as http:

        def send(number: int) -> httpx.Response:
            body, headers = mutate_upload(row.rng, valid, PEFT_CONFIG)
            version = SERVED_VERSION + row.rng.choice((1, 1, 1, 1, 0, -1))
            raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
            return http.put(f"/adapters/{PLAYERS[number % 2]}", params={"version": version}, content=body, headers=raw)  # type: ignore[arg-type]

        _fire(door, row, send)


def test_mutated_rollout_bodies_are_played_or_refused(door: Guarded, drill: Drills) -> None:
    row = drill("mutated rollout bodies", short=500, long=10_000)
    valid = json.dumps(rollout_body(num_deals=2, num_games=2, seats=WANTED)).encode()
    with http_of(door.app, headers=JSON) as http:
        _fire(door, row, lambda number: http.post("/rollout/", content=mutate_rollout(row.rng, valid)))


# --- other programs of the same machine ---


def test_a_server_in_another_pid_namespace_leaves_the_adapters_of_a_living_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets no user make a PID namespace")
    monkeypatch.setattr(adapter_loader, "adapter_home", lambda: tmp_path)
    start = "import sys, pathlib; from hanabi_grpo.server.adapter_loader import OwnedFolder as F; "
    with guarded() as one:
        again = [sys.executable, "-c", start + "print(F(pathlib.Path(sys.argv[1])).path)", str(tmp_path)]
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
        public = http.get("/identity/").text + http.get("/log/").text + http.get("/health/").text + refused
        assert mine["secret"] not in public and mine["trainer_id"] not in public
        for body in (theft, {**theft, "secret": public_run(mine["run_id"]).ljust(64, "0")}):
            answer = http.post("/session/", json=body)
            assert answer.status_code == 409 and "not the secret of its folder" in answer.json()["detail"]
        named = session_headers(mine["run_id"], "7" * 32)
        for method, path in (("POST", "/adapters/commit?version=5"), ("DELETE", "/session/")):
            answer = http.request(method, path, headers=named)
            assert answer.status_code == 409 and mine["trainer_id"] not in answer.text


def test_a_body_of_millions_of_empty_tasks_costs_a_few_times_its_size_and_is_told_why() -> None:
    with guarded() as one, http_of(one.app) as http:
        for megabytes, status, reason in (
            (60, 413, "bytes; allowed are at most 8388608. Send less at once."),
            (7, 422, "tasks.0.env_config: this field is missing"),
        ):
            body = b'{"tasks":[{}' + b",{}" * (megabytes * (1 << 20) // 3 - 20) + b"]}"
            _peak()
            before = _peak()
            answer = http.post("/rollout/", content=body, headers=JSON)
            assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), answer.text
            # The two million rows of each refusal would be 2 GiB of objects.
            assert _peak() - before < 200 << 20


def _peak() -> int:
    """Largest memory of this process since the last call, in bytes."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]


# --- requests that are odd ---

DEEP, DEEP_ENOUGH = "[" * 100_000, "[" * 40 + "]" * 40


def changed(**task: Any) -> str:
    body = rollout_body()
    body["tasks"][0] |= task
    return json.dumps(body)


def asked(**other: Any) -> str:
    return json.dumps({**rollout_body(), **other})


def test_a_rollout_that_cannot_be_played_is_422_with_the_reason(door: Guarded) -> None:
    for body, reason in (
        ("", "rollout request: not JSON"),
        (b'{"tasks": [{"suite": "\xff"}]}', "rollout request: not UTF-8 text"),
        ("[]", "rollout request: all of it=[]: Expected `object`, got `array`"),
        (asked(tasks=[]), "tasks=[]: Expected `array` of length >= 1"),
        (asked(top_p=0.9), "top_p=0.9: no such field"),
        (changed(player=0), "tasks.0.player=0: no such field"),
        ('{"tasks": NaN}', "rollout request: not JSON"),
        (asked().replace('ture": 1.0', 'ture": 1e999'), "temperature: Number out of range"),
        ('{"tasks": ' + DEEP, "tasks.0: Expected `object`, got `array`"),
        ('{"tasks": ' + DEEP_ENOUGH + "}", "tasks.0=[[["),
        (changed(env_config={"preset": [[]]}), "tasks.0.env_config={'preset': [[]]}: Expected"),
        (changed(suite="a/b"), "tasks.0.suite='a/b': Expected `str` matching regex"),
        (changed(seed=-1), "tasks.0.seed=-1: Expected `int` >= 0"),
        (changed(env_config={"preset": "labtop"}), "did you mean"),
        (asked(num_games=32769), "num_games=32769: Expected `int` <= 32768"),
        (asked(max_tokens=512), "MAX_COMPLETION_LENGTH=512: a reply must be shorter than the conversation"),
        (asked(temperature=2.5), "temperature=2.5: Expected `float` <= 2"),
        (asked(seats=["player_0", "base"]), "tasks.0: seat 'player_0': allowed are adapter@version"),
        (asked(seats=["../x@1", "base"]), "seat '../x@1'"),
        (asked(seats=["base"]), "tasks.0: 2 players, but seats=('base',) names 1; name all."),
        (json.dumps(rollout_body(num_deals=16385)), "Expected `array` of length <= 16384"),
        (
            json.dumps(rollout_body(num_deals=2, num_games=16385)),
            "2 tasks, num_games=16385: a request may ask for 32768 games. Ask for fewer at once.",
        ),
    ):
        answer = httpx.post(f"{door.app.url}/rollout/", content=body, headers=JSON, timeout=30, trust_env=False)
        assert answer.status_code == 422, answer.text
        detail = answer.json()["detail"]
        assert reason in detail and len(detail) < 2100, detail


def test_routes_answer_odd_input_with_4xx(door: Guarded) -> None:
    valid = json.dumps(session_body(door.app.identity, version=SERVED_VERSION))
    with httpx.Client(base_url=door.app.url, trust_env=False) as client:
        assert client.get("/rollout/").status_code == 405
        assert client.get("/nothing").json()["detail"] == "GET /nothing: Not Found"
        assert client.get("/log/?after=x").json()["detail"].startswith("query.after: ")
        assert client.post("/session/", content=valid, headers=JSON).status_code == 200
        for body in ("", "[]", DEEP, valid.replace(":", ": NaN,", 1), '{"run_id": "\\ud800"}', "9" * 5000):
            answer = client.post("/session/", content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, body[:50]
        for config in ("", "[]", "[" * 30000, "NaN", "1e999", "9" * 5000, '"x"', "{}", '{"r": 8, "r": 8}'):
            headers = {**OWNER, "x-sha256": "0" * 64, "x-peft-config": config}
            answer = client.put(
                "/adapters/player_0", params={"version": SERVED_VERSION + 1}, content=b"x", headers=headers
            )
            assert answer.status_code == 422, config[:50]
        for version in ("-1", "x", "9" * 5000, "1e3", str(2**63), ""):
            answer = client.put("/adapters/player_0", params={"version": version}, content=b"x", headers=OWNER)
            assert answer.status_code == 422, version[:50]
            assert client.post("/adapters/commit", params={"version": version}, headers=OWNER).status_code in (409, 422)
        for name in ("player_9", "..%2f..%2fetc", "%00", "%ff%fe", "x" * 4000):
            answer = client.put(f"/adapters/{name}?version=1", content=b"x", headers=OWNER)
            assert 400 <= answer.status_code < 500, name[:50]
