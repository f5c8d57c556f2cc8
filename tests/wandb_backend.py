"""A stand-in for W&B's service on loopback, for its bad days: it opens runs, and answers everything else as told."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from local_service import LocalService, QuietHandler, graphql_operation, served

KEY = "0123456789abcdef" * 3
"""A key of the right length that nobody has."""
HANG_SECONDS = 120.0


class Backend(LocalService):
    """Answers on a free port.

    Attributes:
        mode: "good", a status such as "500", "no": a refusal with status 200, or "hang": no answer at all.
        good_for: Names of GraphQL operations that are answered well in any mode.
        seen: Path of each request, or the GraphQL operation.
    """

    def __init__(self, mode: str) -> None:
        super().__init__(_Handler)
        self.mode = mode
        self.good_for: set[str] = set()
        self.seen: list[str] = []
        self.bodies: list[bytes] = []
        self.stopping = threading.Event()

    @property
    def environ(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def answer(self, what: str, variables: dict[str, Any]) -> Any:
        return _good(what, variables)

    def file(self, path: str) -> bytes | None:
        """Return what a GET asks for; None: it is answered as a POST."""
        return None


class _Handler(QuietHandler):
    server: Backend

    def do_POST(self) -> None:
        body = self.body()
        what = self.path
        if self.path == "/graphql":
            what = graphql_operation(body)
        self.server.seen.append(what)
        self.server.bodies.append(body)
        mode = "good" if what in self.server.good_for else self.server.mode
        if mode == "hang":
            self.server.stopping.wait(HANG_SECONDS)
            self.close_connection = True
            return
        if mode == "no":
            return self.give_json({"errors": [{"message": "permission denied"}], "data": {"upsertBucket": None}})
        if mode != "good":
            text = "user is not logged in" if mode == "401" else "not today"
            return self.give_json({"errors": [{"message": text}]}, int(mode))
        variables = json.loads(body).get("variables") or {} if self.path == "/graphql" else {}
        self.give_json(self.server.answer(what, variables))

    def do_GET(self) -> None:
        content = self.server.file(self.path)
        if content is None:
            return self.do_POST()
        self.server.seen.append(self.path)
        self.give(content)

    do_PUT = do_POST


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
    with served(Backend(mode)) as server:
        try:
            yield server
        finally:
            server.stopping.set()


def wait_until(done: Any, seconds: float) -> bool:
    """Return whether something came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.05)
    return bool(done())
