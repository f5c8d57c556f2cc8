"""Servers that misbehave on a real socket: silent, rude, or something else altogether."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

_Result = TypeVar("_Result")
Behaviour = Callable[[socket.socket, bytes], None]
"""What is done with a connection after the request's head was read.

The connection is closed afterwards."""
_BLOCK = 1 << 20
"""Bytes that are read at once."""


@dataclass(slots=True)
class BadServer:
    """What the test knows of a server."""

    url: str
    asked: int = 0
    """Requests whose head was read."""


@contextlib.contextmanager
def bad_server(behave: Behaviour) -> Iterator[BadServer]:
    """Serve `behave` in threads until the test ends; connections still open then are cut."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = BadServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                received = connection.recv(65536)
                if not received:
                    return
                head += received
            server.asked += 1
            behave(connection, head)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def silent(connection: socket.socket, head: bytes) -> None:
    """Accept, read, and never answer: a black hole."""
    connection.settimeout(None)
    while connection.recv(_BLOCK):
        pass


def stalls(answer: bytes) -> Behaviour:
    """Answer these bytes, and no more of them."""

    def behave(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answer)
        silent(connection, head)

    return behave


def drips(start: bytes, again: bytes) -> Behaviour:
    """Answer these bytes, and then more again and again.

    Each time is within any limit for one read.
    """

    def behave(connection: socket.socket, head: bytes) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(again)
            time.sleep(0.02)

    return behave


def says(answer: bytes) -> Behaviour:
    """Answer these bytes and close in order."""

    def behave(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        # The rest of a request body is read, so that the answer is not lost in a reset.
        connection.settimeout(1.0)
        while connection.recv(_BLOCK):
            pass

    return behave


def resets(answer: bytes = b"") -> Behaviour:
    """Answer these bytes and vanish as a killed process does: with a reset."""

    def behave(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answer)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return behave


def http(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """Return an answer with a JSON body.

    Args:
        body: The body.
        status: Number and reason.
        headers: Further lines.
        length: What it claims as the body's length; None: the truth.
    """
    claimed = len(body) if length is None else length
    lines = [
        f"HTTP/1.1 {status}",
        "content-type: application/json",
        "connection: close",
        *headers,
        f"content-length: {claimed}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def accepts_uploads(then: Behaviour) -> Behaviour:
    """Take adapters, then misbehave at the commit."""

    def behave(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"PUT "):
            receipt = json.dumps({"version": 1}).encode()
            accept = says(http(receipt))
            accept(connection, head)
        else:
            then(connection, head)

    return behave


@contextlib.contextmanager
def full_backlog() -> Iterator[BadServer]:
    """A port whose queue is full.

    The system answers no further connection, like a machine that has vanished.
    """
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield BadServer(f"http://127.0.0.1:{listener.getsockname()[1]}")


def timed(call: Callable[[], _Result]) -> tuple[Exception, float]:
    """Return what a call raised and after how many seconds."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        return error, time.monotonic() - start
    raise AssertionError("the call succeeded")
