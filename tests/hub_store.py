"""A stand-in for the Hugging Face hub on loopback that has some folders as repositories, for the
hub's own library.
"""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from local_service import LocalService, QuietHandler, served

COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub(LocalService):
    """Serves folders at one commit, as revision `main`.

    Attributes:
        folders: Repository, e.g. "org/team", to folder.
        given: Paths of files whose content was asked for.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        super().__init__(_Handler)
        self.folders = folders
        self.given: list[str] = []


class _Handler(QuietHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        if path.startswith("/api/models/"):
            return self._about(*path.removeprefix("/api/models/").split("/"))
        repo, _, rest = path.removeprefix("/").partition("/resolve/")
        file = self.server.folders[repo] / rest.partition("/")[2]
        content = file.read_bytes()
        if self.command == "GET":
            self.server.given.append(rest.partition("/")[2])
        self.give(
            content,
            headers={"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT},
        )

    def _about(self, org: str, name: str, what: str = "revision", revision: str = "main") -> None:
        folder = self.server.folders.get(f"{org}/{name}")
        if folder is None:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        files = sorted(one for one in folder.rglob("*") if one.is_file())
        names = [one.relative_to(folder).as_posix() for one in files]
        data: Any = {
            "id": f"{org}/{name}",
            "sha": COMMIT,
            "siblings": [{"rfilename": one} for one in names],
        }
        if what == "tree":
            data = [
                {"type": "file", "path": name, "size": one.stat().st_size, "oid": COMMIT}
                for name, one in zip(names, files, strict=True)
            ]
        self.give_json(data)

    def _refuse(self, status: int, code: str, text: str) -> None:
        self.give(b"", status, {"X-Error-Code": code, "X-Error-Message": text})


def hub(folders: Mapping[str, Path]) -> AbstractContextManager[Hub]:
    """Serve folders for the length of a block."""
    return served(Hub(folders))
