"""A stand-in for W&B's service on loopback that has one artifact, and gives it to W&B's own library."""

import json
from base64 import b64decode
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from local_service import served
from wandb_backend import Backend

TEAM, PROJECT = {"id": "e", "name": "team"}, "hanabi"


class Store(Backend):
    """Serves a folder as version 3 of `team/hanabi/<name>`, alias `best`.

    Attributes:
        kind: The artifact's type.
    """

    def __init__(self, folder: Path, name: str, kind: str = "model") -> None:
        import wandb

        super().__init__("good")
        self.folder, self.name, self.kind = folder, name, kind
        artifact = wandb.Artifact(name, type=kind)
        artifact.add_dir(str(folder), skip_cache=True, policy="immutable")
        artifact.finalize()
        self.manifest: dict[str, Any] = artifact.manifest.to_manifest_json()
        for entry in self.manifest["contents"].values():
            entry.pop("local_path", None)
        self.digest, self.size = artifact.digest, artifact.size

    def answer(self, what: str, variables: dict[str, Any]) -> Any:
        if what.startswith("/"):
            return {}
        viewer = {"id": "u", "username": "me", "entity": "team", "email": "", "flags": "{}"}
        found = variables.get("name") in (f"{self.name}:{alias}" for alias in ("best", "v3", "latest"))
        member = self._membership() if found and variables.get("project") == PROJECT else None
        nodes = [
            {"node": {"__typename": "File", "name": name, "directUrl": f"{self.url}/files/{name}"}}
            for name in self.manifest["contents"]
        ]
        files = {
            "artifactMembership": {"files": {"pageInfo": {"hasNextPage": False, "endCursor": None}, "edges": nodes}}
        }
        manifest = {"id": "m", "file": {"id": "f", "directUrl": f"{self.url}/manifest"}}
        known = {
            "Viewer": {"viewer": viewer},
            "GetDefaultEntity": {"viewer": viewer},
            "ServerFeaturesQuery": {"serverInfo": {"features": []}},
            "ArtifactMembershipByName": {"project": {"artifactCollectionMembership": member}},
            "FetchArtifactManifest": {"artifact": {"currentManifest": manifest}},
            "GetArtifactMembershipFileUrls": {
                "project": {"artifactCollection": {"__typename": "ArtifactSequence", **files}}
            },
        }
        return {"data": known[what]} if what in known else {"errors": [{"message": f"{what} is not known here"}]}

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


def artifact_store(folder: Path, name: str, kind: str = "model") -> AbstractContextManager[Store]:
    """Serve a folder as an artifact for the length of a block."""
    return served(Store(folder, name, kind))
