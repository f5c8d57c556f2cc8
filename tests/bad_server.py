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
"""What is done with a connection after the request's head was read; the connection is closed
afterwards.
"""


@dataclass(slots=True)
class BadServer:
    """What the test knows of it."""

    url: str
    asked: int = 0
    """Requests whose head was read."""


@contextlib.contextmanager
def bad_server(behave: Behaviour) -> Iterator[BadServer]:
    """Serve `behave` in threads until the test ends; connections still open then are cut."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = BadServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    open_now: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := connection.recv(65536)):
                    return
                head += more
            server.asked += 1
            behave(connection, head)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_now.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def silent(connection: socket.socket, head: bytes) -> None:
    """Accept, read, and never answer: a black hole."""
    connection.settimeout(None)
    while connection.recv(1 << 20):
        pass


def stalls(answer: bytes) -> Behaviour:
    """Answer these bytes, and no more of them."""

    def behave(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answer)
        silent(connection, head)

    return behave


def drips(start: bytes, again: bytes) -> Behaviour:
    """Answer these bytes, and then some more of them again and again, each time within any limit
    for one read.
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
        while connection.recv(1 << 20):
            pass

    return behave


def resets(answer: bytes = b"") -> Behaviour:
    """Answer these bytes and vanish as a killed process does: with a reset."""

    def behave(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answer)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return behave


def http(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """Return an answer; `length` may lie."""
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", "connection: close", *headers]
    lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def accepts_uploads(then: Behaviour) -> Behaviour:
    """Take adapters, then misbehave at the commit."""

    def behave(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"PUT "):
            says(http(json.dumps({"version": 1}).encode()))(connection, head)
        else:
            then(connection, head)

    return behave


@contextlib.contextmanager
def full_backlog() -> Iterator[BadServer]:
    """A port whose queue is full: the system answers no further connection, as a vanished machine
    does.
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
