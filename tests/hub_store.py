"""A stand-in for the Hugging Face hub on loopback, for the hub's own library."""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from local_service import LocalService, QuietHandler, served

COMMIT = "0123456789abcdef" * 2 + "01234567"
"""The only commit of every repository."""


class Hub(LocalService):
    """Serves folders as repositories at one commit, as revision `main`.

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
            self._describe(*path.removeprefix("/api/models/").split("/"))
            return
        repo, _, rest = path.removeprefix("/").partition("/resolve/")
        _, _, name = rest.partition("/")
        content = (self.server.folders[repo] / name).read_bytes()
        if self.command == "GET":
            self.server.given.append(name)
        digest = hashlib.sha256(content).hexdigest()
        self.give(content, headers={"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})

    def _describe(
        self, org: str, name: str, what: str = "revision", revision: str = "main"
    ) -> None:
        """Answer what a repository holds."""
        folder = self.server.folders.get(f"{org}/{name}")
        if folder is None:
            self._refuse(404, "RepoNotFound", "Repository not found")
            return
        if revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        files = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                files[path.relative_to(folder).as_posix()] = path.stat().st_size
        if what == "tree":
            tree = []
            for file, size in files.items():
                tree.append({"type": "file", "path": file, "size": size, "oid": COMMIT})
            self.give_json(tree)
            return
        siblings = [{"rfilename": file} for file in files]
        data: dict[str, Any] = {"id": f"{org}/{name}", "sha": COMMIT, "siblings": siblings}
        self.give_json(data)

    def _refuse(self, status: int, code: str, text: str) -> None:
        self.give(b"", status, {"X-Error-Code": code, "X-Error-Message": text})


def hub(folders: Mapping[str, Path]) -> AbstractContextManager[Hub]:
    """Serve folders for the length of a block."""
    return served(Hub(folders))
