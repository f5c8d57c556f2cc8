"""What the stand-ins for services on loopback share: quiet handlers, and a server for the length of
a block.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar


class LocalService(ThreadingHTTPServer):
    """A server on a free port of 127.0.0.1; a thread per request."""

    daemon_threads = True
    # Clients that gave up are no news.
    block_on_close = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        return


Service = TypeVar("Service", bound=LocalService)


@contextmanager
def served(server: Service) -> Iterator[Service]:
    """Let a server answer for the length of a block."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class QuietHandler(BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def body(self) -> bytes:
        """Return what came with the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def give(
        self, content: bytes, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer; a HEAD request gets no content."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def give_json(self, data: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self.give(json.dumps(data).encode(), status, {"Content-Type": "application/json"})


def graphql_operation(body: bytes) -> str:
    """Return the name of a GraphQL request's operation; "graphql" for what is none."""
    try:
        query = json.loads(body)
        return str(
            query.get("operationName") or query["query"].split("(")[0].split("{")[0].split()[-1]
        )
    except (ValueError, KeyError, IndexError):
        return "graphql"
