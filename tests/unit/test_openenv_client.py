"""What a server of this machine can do to whoever plays it as `openenv:localhost:PORT`: nothing.

Each of them is a real server. Every call ends by its deadline, with an error that says the way out.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip(
    "openenv", reason="the extra openenv is not installed: uv pip install 'hanabi-grpo[openenv]'"
)

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.interop import openenv_session
from hanabi_grpo.envs.interop.openenv_client import openenv_game
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import ServerError, SettingsError

DEADLINE = 2.0
"""Seconds of a call in these tests."""
LATE = 12.0
"""Seconds after which a call has not ended by its deadline, on a busy machine too."""
SCHEMA = {"action": {"properties": {"text": {"type": "string"}}}}


@pytest.fixture(autouse=True)
def _short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv_session, "DEADLINE", DEADLINE)


class RawServer:
    """Answers each connection by a function, which has the socket and the request's head."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.requests: list[str] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # The client hangs up in the middle: that is what is tested.
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            self.requests.append(head.split(b"\r\n")[0].decode())
            self._answer(connection)

    def close(self) -> None:
        # Wakes the thread that waits in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[RawServer]:
    server = RawServer(answer)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def game_server(
    play: Callable[[ServerConnection], None],
    process_request: Callable[[ServerConnection, Request], Response | None] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Iterator[int]:
    """Serve the schema of a game, and episodes by a function; yields the port."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        contents = {"/schema": SCHEMA, "/metadata": metadata}
        if request.path in contents:
            content = contents[request.path]
            body = json.dumps(content).encode()
            headers = Headers({"content-type": "application/json", "content-length": len(body)})
            if content is None:
                return Response(404, "Not Found", headers, body)
            return Response(200, "OK", headers, body)
        return process_request(connection, request) if process_request else None

    def play_until_closed(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            play(connection)

    with serve(
        play_until_closed, "127.0.0.1", 0, process_request=answer, ping_interval=None
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join(20)


def seen(text: str, *, done: bool = False, reward: float | None = None) -> str:
    data = {"observation": {"text": text}, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


def begin(port: int, observation_field: str = "text") -> Referee:
    environment = registry.get(f"openenv:localhost:{port}")
    [preset] = environment.presets.values()
    config = preset.model_copy(update={"observation_field": observation_field})
    return Referee(Setup(environment, config).task("eval", 1))


@contextlib.contextmanager
def ends_in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    assert seconds < LATE, f"{seconds:.1f} s for a deadline of {DEADLINE} s"


def test_a_redirect_of_the_schema_is_not_followed() -> None:
    def answer_secret(connection: socket.socket) -> None:
        body = json.dumps(SCHEMA).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    with raw_server(answer_secret) as secret:
        head = f"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{secret.port}/secret?x=1\r\n"

        def redirect(connection: socket.socket) -> None:
            connection.sendall(head.encode() + b"content-length: 0\r\n\r\n")

        with (
            raw_server(redirect) as server,
            pytest.raises(
                SettingsError,
                match=rf"openenv:localhost:{server.port}.*/schema is not an OpenEnv server "
                r"\(status 302; expected 200, and redirects are not followed\); start it first",
            ),
        ):
            registry.get(f"openenv:localhost:{server.port}")
        assert server.requests == ["GET /schema HTTP/1.1"]
        assert secret.requests == []


def hash_of_server(metadata: dict[str, Any] | None) -> str:
    """Return the hash of a game whose server describes itself so, on the port that every one has.

    The name of the game contains the port, so the environment is made under the name of another.
    """
    with game_server(lambda connection: None, metadata=metadata) as port:
        environment = openenv_game(f"openenv:localhost:{port}")
    environment.name = "openenv:localhost:1"
    [config] = environment.presets.values()
    return environment.spec(config.model_copy(update={"preset": "localhost:1"})).hash


def test_games_of_one_address_differ_by_what_their_server_says_it_plays() -> None:
    described = {"name": "chess", "version": "1.0", "description": "Plays chess.", "author": None}
    hashes = [
        hash_of_server(metadata)
        for metadata in (
            None,
            described,
            {**described, "version": "1.1"},
            {**described, "version": None},
            {**described, "name": "checkers"},
        )
    ]
    assert len(set(hashes)) == 5
    assert hash_of_server({**described, "author": "Ann"}) == hashes[1]
    with (
        game_server(lambda connection: None, metadata={"name": 7}) as port,
        pytest.raises(SettingsError, match=r"/metadata is not an OpenEnv server .*start it first"),
    ):
        registry.get(f"openenv:localhost:{port}")


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_a_redirect_of_an_episode_is_not_followed(scheme: str) -> None:
    with raw_server(lambda connection: None) as secret:

        def redirect(connection: ServerConnection, request: Request) -> Response:
            location = f"{scheme}://127.0.0.1:{secret.port}/secret"
            return Response(302, "Found", Headers({"location": location, "content-length": "0"}))

        with (
            game_server(lambda connection: None, redirect) as port,
            pytest.raises(ServerError, match=r"reset failed .*/secret"),
        ):
            begin(port)
        assert secret.requests == []


def test_an_endless_schema_is_cut_at_the_size_that_is_allowed() -> None:
    sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        blanks = b" " * (1 << 20)
        while sent < 1 << 30:
            connection.sendall(blanks)
            sent += len(blanks)

    with (
        ends_in_time(),
        raw_server(flood) as server,
        pytest.raises(SettingsError, match=r"more than the maximum of 4194304 bytes"),
    ):
        registry.get(f"openenv:localhost:{server.port}")
    # Besides what was read: the buffers of the two sockets.
    assert sent < 64 << 20


def test_a_compressed_schema_is_refused() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nxxxxx"
    with (
        raw_server(lambda connection: connection.sendall(head)) as server,
        pytest.raises(SettingsError, match=r"content-encoding gzip; only identity is allowed"),
    ):
        registry.get(f"openenv:localhost:{server.port}")


@pytest.mark.parametrize(
    "dripped",
    [b"HTTP/1.1 200 OK\r\nx: " + b"x" * 10_000, b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 10_000, b""],
    ids=["head", "body", "nothing"],
)
def test_a_dripping_schema_ends_by_the_deadline(dripped: bytes) -> None:
    def drip(connection: socket.socket) -> None:
        for number in range(len(dripped)):
            connection.sendall(dripped[number : number + 1])
            if number > 20:
                time.sleep(DEADLINE / 5)
        time.sleep(2 * LATE)

    with (
        ends_in_time(),
        raw_server(drip) as server,
        pytest.raises(SettingsError, match=r"no complete response within 2 s"),
    ):
        registry.get(f"openenv:localhost:{server.port}")


@pytest.mark.parametrize(
    "schema",
    [
        b"[" * 100_000,
        b'{"action": {"properties": {"text": "string"}}}',
        b'{"action": {"properties": ["text"]}}',
        b'{"observation": {}}',
        b"<html>",
    ],
)
def test_what_is_no_schema_is_a_settings_error(schema: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(schema)
    with (
        raw_server(lambda connection: connection.sendall(head + schema)) as server,
        pytest.raises(SettingsError, match=r"/schema is not an OpenEnv server \(.*start it first"),
    ):
        registry.get(f"openenv:localhost:{server.port}")


def test_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(seen("Guess."))
        connection.recv()
        connection.send(seen("Right.", done=True, reward=2.0))

    with raw_server(lambda connection: None) as proxy, game_server(play) as port:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "ws_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        referee = begin(port)
        assert referee.see(0).message() == "Guess."
        referee.step({0: "7"})
        assert referee.game.result() == {"total": 2.0}
    assert proxy.requests == []


def test_an_observation_that_is_too_long_ends_the_game() -> None:
    def play(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(seen("x" * (5 << 20)))
        connection.recv()

    with (
        game_server(play) as port,
        pytest.raises(ServerError, match=r"reset failed .*1009.*4194304"),
    ):
        begin(port)


def test_a_server_that_does_not_answer_ends_the_game_by_the_deadline() -> None:
    asked: list[Any] = []

    def play(connection: ServerConnection) -> None:
        asked.append(json.loads(connection.recv())["type"])
        connection.send(seen("Guess."))
        asked.append(json.loads(connection.recv())["type"])
        time.sleep(2 * DEADLINE)
        connection.send(seen("Right, but late.", done=True, reward=1.0))
        asked.append(json.loads(connection.recv())["type"])

    with game_server(play) as port:
        referee = begin(port)
        with ends_in_time(), pytest.raises(ServerError, match=r"step failed .*no complete respon"):
            referee.step({0: "7"})
        assert asked == ["reset", "step"]
        # The answer that comes too late is not taken for that of a later question.
        with ends_in_time(), pytest.raises(ServerError, match=r"its session is over"):
            referee.game.step({0: "8"})
        # A session that is dropped hangs up.
        time.sleep(1.5 * DEADLINE)
    assert asked == ["reset", "step"]


def test_a_dripping_observation_ends_by_the_deadline() -> None:
    def play(connection: ServerConnection) -> None:
        connection.recv()

        def drip() -> Iterator[str]:
            for letter in seen("x" * 1000):
                time.sleep(DEADLINE / 5)
                yield letter

        connection.send(drip())

    with (
        game_server(play) as port,
        ends_in_time(),
        pytest.raises(ServerError, match=r"reset failed .*no complete response within 2 s"),
    ):
        begin(port)


def test_a_server_that_never_shakes_hands_ends_by_the_deadline() -> None:
    seen_enough = threading.Event()

    def answer(connection: ServerConnection, request: Request) -> None:
        seen_enough.wait(2 * LATE)

    with game_server(lambda connection: None, answer) as port:
        with (
            ends_in_time(),
            pytest.raises(ServerError, match=r"reset failed .*no complete response within 2 s"),
        ):
            begin(port)
        seen_enough.set()


def test_a_server_that_reads_nothing_ends_by_the_deadline() -> None:
    seen_enough = threading.Event()

    def play(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(seen("Guess."))
        # Nothing of this socket is read from now on: with full buffers, sending waits.
        connection.recv_flow_control.acquire()
        seen_enough.wait(2 * LATE)
        connection.recv_flow_control.release()

    with game_server(play) as port:
        referee = begin(port)
        with ends_in_time(), pytest.raises(ServerError, match=r"step failed .*no complete respon"):
            referee.step({0: "7" * (40 << 20)})
        seen_enough.set()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("{", r"the response is invalid"),
        ("[" * 100_000, r"the response is invalid"),
        ('{"type": "state", "data": {}}', r"the response is invalid"),
        ('{"type": "observation", "data": {"observation": 1}}', r"the response is invalid"),
        ('{"type": "observation", "data": {"observation": {}, "reward": "9"}}', r"is invalid"),
        ('{"type": "observation", "data": {"observation": {}, "reward": NaN}}', r"is invalid"),
        (
            '{"type": "error", "data": {"message": "no seat", "code": "CAPACITY_REACHED"}}',
            r"it reports 'no seat' \('CAPACITY_REACHED'\)",
        ),
    ],
)
def test_what_is_no_observation_ends_the_game(answer: str, reason: str) -> None:
    def play(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(answer)
        connection.recv()

    with game_server(play) as port, pytest.raises(ServerError, match=rf"reset failed .*{reason}"):
        begin(port)


def test_a_server_that_hangs_up_ends_the_game() -> None:
    def play(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(seen("Guess."))
        connection.recv()
        connection.close(1001, "gone")

    with game_server(play) as port:
        referee = begin(port)
        with pytest.raises(ServerError, match=r"step failed .*1001.*Is the server running"):
            referee.step({0: "7"})


def test_sessions_leave_no_thread_behind() -> None:
    def play(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(seen("Guess."))
        connection.recv()
        connection.send(seen("Right.", done=True, reward=1.0))

    with game_server(play) as port:

        def threads() -> set[str]:
            # Another test's game may still be waiting for its server in this process.
            names = {thread.name for thread in threading.enumerate()}
            return {name for name in names if "openenv" in name and str(port) in name}

        referee = begin(port)
        assert len(threads()) == 1
        referee.step({0: "7"})
        assert threads() == set()
        # A game that is dropped in the middle is ended by the next one.
        begin(port)
        begin(port).step({0: "7"})
        assert threads() == set()
        # The error keeps the game alive, but not its session.
        with pytest.raises(SettingsError, match="HANABI_OBSERVATION_FIELD=message"):
            begin(port, observation_field="message")
        assert threads() == set()
