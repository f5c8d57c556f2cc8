"""A stand-in for W&B's service on loopback: its bad days, and one artifact for its own library."""

import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from local_service import LocalService, QuietHandler, graphql_operation, served

KEY = "0123456789abcdef" * 3
"""A key of the right length that nobody has."""
HANG_SECONDS = 120.0
"""How long a service that hangs keeps a connection."""
TEAM = {"id": "e", "name": "team"}
PROJECT = "hanabi"


class Backend(LocalService):
    """Answers on a free port.

    Attributes:
        mode: "good"; a status such as "500"; "no", a refusal with status 200; or "hang", no answer
            at all.
        seen: Path of each request, or its GraphQL operation.
        bodies: Body of each request.
        stopping: Set at the end, so that nothing hangs any longer.
    """

    def __init__(self, mode: str) -> None:
        super().__init__(_Handler)
        self.mode = mode
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
        what = graphql_operation(body) if self.path == "/graphql" else self.path
        self.server.seen.append(what)
        self.server.bodies.append(body)
        mode = self.server.mode
        if mode == "hang":
            self.server.stopping.wait(HANG_SECONDS)
            self.close_connection = True
            return
        if mode == "no":
            self.give_json({**_error("permission denied"), "data": {"upsertBucket": None}})
            return
        if mode != "good":
            text = "user is not logged in" if mode == "401" else "not today"
            self.give_json(_error(text), int(mode))
            return
        variables = {}
        if self.path == "/graphql":
            variables = json.loads(body).get("variables") or {}
        self.give_json(self.server.answer(what, variables))

    def do_GET(self) -> None:
        content = self.server.file(self.path)
        if content is None:
            self.do_POST()
            return
        self.server.seen.append(self.path)
        self.give(content)

    do_PUT = do_POST


def _error(text: str) -> dict[str, Any]:
    return {"errors": [{"message": text}]}


def _good(what: str, variables: dict[str, Any]) -> Any:
    """Answer a request of a run."""
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
    if what.startswith("/"):
        return {}
    return _error(f"{what} is not known here")


@contextmanager
def backend(mode: str) -> Iterator[Backend]:
    """Run a stand-in for the length of a block."""
    with served(Backend(mode)) as server:
        try:
            yield server
        finally:
            server.stopping.set()


class Store(Backend):
    """Serves a folder as version 3 of `team/hanabi/<name>`, alias `best`.

    Attributes:
        kind: The artifact's type.
    """

    def __init__(self, folder: Path, name: str, kind: str = "model") -> None:
        import wandb

        super().__init__("good")
        self.folder = folder
        self.name = name
        self.kind = kind
        artifact = wandb.Artifact(name, type=kind)
        artifact.add_dir(str(folder), skip_cache=True, policy="immutable")
        artifact.finalize()
        self.manifest: dict[str, Any] = artifact.manifest.to_manifest_json()
        for entry in self.manifest["contents"].values():
            entry.pop("local_path", None)
        self.digest = artifact.digest
        self.size = artifact.size

    def answer(self, what: str, variables: dict[str, Any]) -> Any:
        if what.startswith("/"):
            return {}
        answers = self._answers(variables)
        if what not in answers:
            return _error(f"{what} is not known here")
        return {"data": answers[what]}

    def _answers(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return what each GraphQL operation is answered."""
        viewer = {"id": "u", "username": "me", "entity": "team", "email": "", "flags": "{}"}
        names = [f"{self.name}:{alias}" for alias in ("best", "v3", "latest")]
        member = None
        if variables.get("name") in names and variables.get("project") == PROJECT:
            member = self._membership()
        edges = []
        for name in self.manifest["contents"]:
            url = f"{self.url}/files/{name}"
            edges.append({"node": {"__typename": "File", "name": name, "directUrl": url}})
        files = {"pageInfo": {"hasNextPage": False, "endCursor": None}, "edges": edges}
        collection = {"__typename": "ArtifactSequence", "artifactMembership": {"files": files}}
        manifest = {"id": "m", "file": {"id": "f", "directUrl": f"{self.url}/manifest"}}
        return {
            "Viewer": {"viewer": viewer},
            "GetDefaultEntity": {"viewer": viewer},
            "ServerFeaturesQuery": {"serverInfo": {"features": []}},
            "ArtifactMembershipByName": {"project": {"artifactCollectionMembership": member}},
            "FetchArtifactManifest": {"artifact": {"currentManifest": manifest}},
            "GetArtifactMembershipFileUrls": {"project": {"artifactCollection": collection}},
        }

    def file(self, path: str) -> bytes:
        if path == "/manifest":
            return json.dumps(self.manifest).encode()
        name = unquote(path).removeprefix("/files/")
        for entry, content in self.manifest["contents"].items():
            # A single file is asked for by its digest.
            if b64decode(content["digest"]).hex() in path.split("/"):
                name = entry
        return (self.folder / name).read_bytes()

    def _membership(self) -> dict[str, Any]:
        project = {"id": "p", "internalId": "i", "name": PROJECT, "entity": TEAM}
        sequence = {"__typename": "ArtifactSequence", "name": self.name, "project": project}
        now = "2026-01-01T00:00:00"
        artifact = {
            "__typename": "Artifact",
            "id": f"a-{self.server_port}",
            "artifactSequence": sequence,
            "versionIndex": 3,
            "artifactType": {"name": self.kind},
            "description": None,
            "metadata": "{}",
            "ttlDurationSeconds": -2,
            "ttlIsInherited": True,
            "tags": [],
            "historyStep": None,
            "state": "COMMITTED",
            "size": self.size,
            "digest": self.digest,
            "commitHash": None,
            "fileCount": len(self.manifest["contents"]),
            "createdAt": now,
            "updatedAt": None,
            "aliases": [],
        }
        aliases = []
        for alias in ("best", "latest"):
            aliases.append({"__typename": "ArtifactAlias", "id": alias, "alias": alias})
        return {
            "__typename": "ArtifactCollectionMembership",
            "id": "x",
            "versionIndex": 3,
            "createdAt": now,
            "aliases": aliases,
            "artifactCollection": sequence,
            "artifact": artifact,
        }


def artifact_store(folder: Path, name: str, kind: str = "model") -> AbstractContextManager[Store]:
    """Serve a folder as an artifact for the length of a block."""
    return served(Store(folder, name, kind))
