"""A stand-in for W&B's service on loopback that has one artifact, and gives it to W&B's own library."""

import json
from base64 import b64decode
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from local_service import LocalService, QuietHandler, graphql_operation, served
from wandb_backend import KEY

TEAM, PROJECT = {"id": "e", "name": "team"}, "hanabi"


class Store(LocalService):
    """Serves a folder as version 3 of `team/hanabi/<name>`, alias `best`.

    Attributes:
        seen: GraphQL operations and paths, in order.
        kind: The artifact's type.
    """

    def __init__(self, folder: Path, name: str, kind: str = "model") -> None:
        import wandb

        super().__init__(_Handler)
        self.folder, self.name, self.kind = folder, name, kind
        self.seen: list[str] = []
        artifact = wandb.Artifact(name, type=kind)
        artifact.add_dir(str(folder), skip_cache=True, policy="immutable")
        artifact.finalize()
        self.manifest: dict[str, Any] = artifact.manifest.to_manifest_json()
        for entry in self.manifest["contents"].values():
            entry.pop("local_path", None)
        self.digest, self.size = artifact.digest, artifact.size

    @property
    def environ(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    def answer(self, operation: str, variables: dict[str, Any]) -> Any:
        if operation == "Viewer":
            return {"viewer": {"id": "u", "username": "me", "entity": "team", "email": "", "flags": "{}"}}
        if operation == "GetDefaultEntity":
            return {"viewer": {"id": "u", "entity": "team"}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "ArtifactMembershipByName":
            found = variables["name"] in (f"{self.name}:best", f"{self.name}:v3", f"{self.name}:latest")
            member = self._membership() if found and variables["project"] == PROJECT else None
            return {"project": {"artifactCollectionMembership": member}}
        if operation == "FetchArtifactManifest":
            url = {"id": "f", "directUrl": f"{self.url}/manifest"}
            return {"artifact": {"currentManifest": {"id": "m", "file": url}}}
        if operation == "GetArtifactMembershipFileUrls":
            nodes = [
                {"node": {"__typename": "File", "name": name, "directUrl": f"{self.url}/files/{name}"}}
                for name in self.manifest["contents"]
            ]
            page = {"hasNextPage": False, "endCursor": None}
            files = {"artifactMembership": {"files": {"pageInfo": page, "edges": nodes}}}
            return {"project": {"artifactCollection": {"__typename": "ArtifactSequence", **files}}}
        return None

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
        aliases = [{"__typename": "ArtifactAlias", "id": alias, "alias": alias} for alias in ("best", "latest")]
        return {
            "__typename": "ArtifactCollectionMembership",
            "id": "x",
            "versionIndex": 3,
            "createdAt": now,
            "aliases": aliases,
            "artifactCollection": sequence,
            "artifact": artifact,
        }


class _Handler(QuietHandler):
    server: Store

    def do_POST(self) -> None:
        body = self.body()
        if self.path != "/graphql":
            return self.give_json({})
        operation = graphql_operation(body)
        self.server.seen.append(operation)
        data = self.server.answer(operation, json.loads(body).get("variables") or {})
        known = {"data": data} if data is not None else {"errors": [{"message": f"{operation} is not known here"}]}
        self.give_json(known)

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        if self.path == "/manifest":
            return self.give_json(self.server.manifest)
        name = unquote(self.path).removeprefix("/files/")
        for entry, content in self.server.manifest["contents"].items():
            # A single file is asked for by its digest.
            if b64decode(content["digest"]).hex() in self.path.split("/"):
                name = entry
        self.give((self.server.folder / name).read_bytes())


def artifact_store(folder: Path, name: str, kind: str = "model") -> AbstractContextManager[Store]:
    """Serve a folder as an artifact for the length of a block."""
    return served(Store(folder, name, kind))
