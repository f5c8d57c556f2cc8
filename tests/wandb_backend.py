"""A stand-in for W&B's service on loopback, for its bad days: it opens runs, and answers everything else as told."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef" * 3
"""A key of the right length that nobody has."""
HANG_SECONDS = 120.0


class Backend(ThreadingHTTPServer):
    """Answers on a free port.

    Attributes:
        mode: "good", a status such as "500", "no": a refusal with status 200, or "hang": no answer at all.
        good_for: Names of GraphQL operations that are answered well in any mode.
        seen: Path of each request, or the GraphQL operation.
    """

    daemon_threads = True
    # Clients that gave up are no news.
    block_on_close = False

    def __init__(self, mode: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = mode
        self.good_for: set[str] = set()
        self.seen: list[str] = []
        self.bodies: list[bytes] = []
        self.stopping = threading.Event()

    @property
    def environ(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}", "WANDB_API_KEY": KEY}

    def handle_error(self, *_: Any) -> None:
        return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def log_message(self, *_: Any) -> None:
        return

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what = self.path
        if self.path == "/graphql":
            what = _operation(body)
        self.server.seen.append(what)
        self.server.bodies.append(body)
        mode = "good" if what in self.server.good_for else self.server.mode
        if mode == "hang":
            self.server.stopping.wait(HANG_SECONDS)
            self.close_connection = True
            return
        if mode == "no":
            return self._answer(200, {"errors": [{"message": "permission denied"}], "data": {"upsertBucket": None}})
        if mode != "good":
            text = "user is not logged in" if mode == "401" else "not today"
            return self._answer(int(mode), {"errors": [{"message": text}]})
        variables = json.loads(body).get("variables", {}) if self.path == "/graphql" else {}
        self._answer(200, _good(what, variables))

    do_GET = do_PUT = do_POST

    def _answer(self, status: int, data: Any) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _operation(body: bytes) -> str:
    try:
        query = json.loads(body)
        name = query.get("operationName")
        return str(name or query["query"].split("(")[0].split("{")[0].split()[-1])
    except (ValueError, KeyError, IndexError):
        return "graphql"


def _good(what: str, variables: dict[str, Any]) -> Any:
    if what == "UpsertBucket":
        entity = {"id": "e", "name": variables.get("entity") or "team"}
        project = {"id": "p", "name": variables.get("project"), "entity": entity}
        bucket = {
            "id": "b",
            "name": variables.get("name"),
            "displayName": variables.get("displayName"),
            "description": None,
            "config": "{}",
            "sweepName": None,
            "historyLineCount": 0,
            "project": project,
        }
        return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
    if what == "RunResumeStatus":
        return {"data": {"model": None}}
    if what == "CreateRunFiles":
        return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}}
    return {} if what.startswith("/") else {"errors": [{"message": f"{what} is not known here"}]}


@contextmanager
def backend(mode: str) -> Iterator[Backend]:
    """Run a stand-in for the length of a block."""
    server = Backend(mode)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def wait_until(done: Any, seconds: float) -> bool:
    """Return whether something came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.05)
    return bool(done())
