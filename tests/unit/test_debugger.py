"""HANABI_DEBUG: a process waits until a debugger is attached, and says why it cannot."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.processes import wait_for_debugger
from ports import free_port

_SECONDS = 90.0
"""For debugpy's own processes to start on a busy machine."""
PROGRAM = """
import sys
from hanabi_grpo.processes import wait_for_debugger
wait_for_debugger("trainer", int(sys.argv[1]))
print("goes on", flush=True)
"""
TELLING_PROGRAM = """
import sys
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.processes import wait_for_debugger
try:
    wait_for_debugger("trainer", int(sys.argv[1]))
except SettingsError as error:
    print(error)
"""


def connect(port: int) -> socket.socket:
    """Connect as soon as somebody listens."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < until, "nobody listens"
            time.sleep(0.1)


def send(connection: socket.socket, number: int, command: str, **arguments: Any) -> None:
    """Send a request of the Debug Adapter Protocol."""
    request = {"seq": number, "type": "request", "command": command, "arguments": arguments}
    body = json.dumps(request).encode()
    connection.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))


def messages(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection.makefile("rb") as stream:
        while True:
            length = 0
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                if name == b"Content-Length":
                    length = int(value)
            yield json.loads(stream.read(length))


@pytest.fixture
def waiting() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that waits for a debugger at a port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port)], stdout=subprocess.PIPE, text=True
    )
    yield process, port
    process.kill()
    process.wait()


@pytest.mark.rest
def test_a_process_waits_until_a_debugger_is_attached(
    waiting: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = waiting
    with contextlib.closing(connect(port)) as connection:
        send(connection, 1, "initialize", adapterID="debugpy", clientID="test")
        send(connection, 2, "attach", justMyCode=True)
        for message in messages(connection):
            if message.get("event") == "initialized":
                break
        assert process.poll() is None
        send(connection, 3, "configurationDone")
        assert process.stdout is not None
        assert process.stdout.readline() == "goes on\n"


def test_a_port_that_is_taken_is_told_with_the_ways_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = subprocess.run(
            [sys.executable, "-c", TELLING_PROGRAM, str(port)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    assert f"HANABI_DEBUG=trainer: cannot wait for a debugger at 127.0.0.1:{port} (" in (
        answer.stdout
    )
    assert "or unset HANABI_DEBUG." in answer.stdout


def test_without_debugpy_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)
    with pytest.raises(SettingsError) as refusal:
        wait_for_debugger("server")
    assert str(refusal.value) == (
        "HANABI_DEBUG=server: debugpy is not installed; it is one of the developers' packages, "
        "which bash tools/setup.sh installs. Or unset HANABI_DEBUG."
    )
