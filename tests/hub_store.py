"""A stand-in for the Hugging Face hub on loopback that has some folders as repositories, for the hub's own library."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub(ThreadingHTTPServer):
    """Serves folders at one commit, as revision `main`.

    Attributes:
        folders: Repository, e.g. "org/team", to folder.
        given: Paths of files whose content was asked for.
    """

    daemon_threads = True

    def __init__(self, folders: Mapping[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folders = folders
        self.given: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        return

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
        self._give(content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def _about(self, org: str, name: str, what: str = "revision", revision: str = "main") -> None:
        folder = self.server.folders.get(f"{org}/{name}")
        if folder is None:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        files = sorted(one for one in folder.rglob("*") if one.is_file())
        names = [one.relative_to(folder).as_posix() for one in files]
        data: Any = {"id": f"{org}/{name}", "sha": COMMIT, "siblings": [{"rfilename": one} for one in names]}
        if what == "tree":
            data = [
                {"type": "file", "path": name, "size": one.stat().st_size, "oid": COMMIT}
                for name, one in zip(names, files, strict=True)
            ]
        self._give(json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, text: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", text)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _give(self, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def hub(folders: Mapping[str, Path]) -> Iterator[Hub]:
    """Serve folders for the length of a block."""
    server = Hub(folders)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
