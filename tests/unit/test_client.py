"""The client's calls against servers that say nothing, too little, too late or something else."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import hanabi_grpo.client.http_calls
from fake_engine import LAPTOP, deal
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.runs.adapter_config import config_digest
from hanabi_grpo.settings import Settings
from server_app import PEFT_CONFIG, PLAYERS, adapter_bytes, running_app, session_body

QUICK = ClientTimeouts(connect=0.2, health=0.2, answer=0.2, rollout=0.2)
GONE = "http://127.0.0.1:1"
SESSION = {
    "run_id": "run",
    "adapters": list(PLAYERS),
    "lora_rank": 8,
    "model_fingerprint": "m",
    "tokenizer_hash": "t",
    "chat_hash": "c",
    "dtype": "float32",
    "games": [],
}
CALLS: dict[str, Callable[[RolloutClient], Any]] = {
    "health": lambda client: client.health(),
    "identity": lambda client: client.identity(),
    "log": lambda client: client.log(0),
    "open_session": lambda client: client.open_session(**SESSION),
    "heartbeat": lambda client: client.heartbeat(),
    "release": lambda client: _in_session(client).release(),
    "push": lambda client: client.push(1, {"player_0": (b"x", PEFT_CONFIG)}),
    "play": lambda client: client.play(
        [deal(0, LAPTOP)], num_games=1, max_tokens=4, temperature=1.0, seats=["base", "base"]
    ),
}


def _in_session(client: RolloutClient) -> RolloutClient:
    client.session_timeout = 60.0
    return client


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanabi_grpo.client.http_calls, "_PAUSE", 0.01)


@contextmanager
def _raw_server(answer: bytes | None) -> Iterator[tuple[str, list[int]]]:
    """Answer every connection with these bytes and hang up; None: accept and say nothing. Counts connections."""
    accepted: list[int] = []
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(1)
                if answer is None:
                    held.append(connection)
                    continue
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", accepted
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for connection in held:
                connection.close()


def _http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize(("name", "tries"), [("identity", 3), ("push", 3), ("health", 1), ("play", 1), ("release", 1)])
def test_a_server_that_hangs_up_is_asked_again_only_where_that_is_harmless(name: str, tries: int) -> None:
    with _raw_server(b"") as (url, accepted), RolloutClient(url, timeouts=QUICK) as client:
        with pytest.raises(ServerGoneError, match=rf"{url}: .*{tries} attempt.*Is the rollout server running\?"):
            CALLS[name](client)
        assert len(accepted) == tries
    with RolloutClient(GONE, timeouts=QUICK) as client, pytest.raises(ServerGoneError, match=r"ConnectError"):
        CALLS[name](client)


@pytest.mark.parametrize("name", ["health", "log", "open_session", "push", "play"])
def test_an_answer_that_is_none_of_ours_is_an_error_with_its_first_characters(name: str) -> None:
    """Many more of them are in tests/faults/test_client_faults.py."""
    for answer, message in (
        (_http("200 OK", b"<html>hello</html>"), "not JSON, or only a part of it: '<html>hello"),
        (_http("200 OK", b"[1, 2]"), r"does not fit \(.*Expected `object`, got `array`\)"),
        (_http("422 X", b'{"detail": [{"msg": "no"}]}'), r'answered 422: \[{"msg": "no"}\]'),
    ):
        with _raw_server(answer) as (url, _), RolloutClient(url, timeouts=QUICK) as client:
            with pytest.raises(ServerError, match=message) as caught:
                CALLS[name](client)
            assert type(caught.value) is ServerError and url in str(caught.value)


def test_a_receipt_that_is_not_for_what_was_sent_is_an_error() -> None:
    class Liar(BaseHTTPRequestHandler):
        receipt: dict[str, Any] = {}  # noqa: RUF012 (set by the test)

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.dumps({"instance_id": "i", "receipts": {"player_0": Liar.receipt}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    body = adapter_bytes(0.1)
    sha256 = hashlib.sha256(body).hexdigest()
    right = {"version": 1, "sha256": sha256, "config_sha256": config_digest(PEFT_CONFIG), "lora_name": "x"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with RolloutClient(f"http://127.0.0.1:{server.server_port}") as client:
            for wrong in ({"version": 0}, {"sha256": "0" * 64}, {"config_sha256": "0" * 64}):
                Liar.receipt = {**right, **wrong}
                with pytest.raises(ServerError, match="the server does not serve what was trained"):
                    client.push(1, {"player_0": (body, PEFT_CONFIG)})
            Liar.receipt = right
            assert client.push(1, {"player_0": (body, PEFT_CONFIG)})["instance_id"] == "i"
            with pytest.raises(ServerError, match="receipt for player_1 is None"):
                client.push(1, {"player_0": (body, PEFT_CONFIG), "player_1": (body, PEFT_CONFIG)})
        server.shutdown()


def test_headers_name_the_run_from_the_opening_to_the_release_and_the_key_is_always_there() -> None:
    with running_app(api_key="k") as app, RolloutClient(app.url, api_key="k") as client:
        assert client.headers == {"authorization": "Bearer k"}
        given = session_body(app.identity, run_id="/runs/jürgen")
        client.open_session(**{name: given[name] for name in SESSION})
        assert client.headers == {
            "authorization": "Bearer k",
            "x-run-id": "/runs/j%C3%BCrgen",
            "x-trainer-id": client.trainer_id,
        }
        assert client.session_timeout == 60.0
        client.push(1, {name: (adapter_bytes(0.1), PEFT_CONFIG) for name in PLAYERS})
        client.release()
        client.release()
        assert client.headers == {"authorization": "Bearer k"}
        assert client.identity()["versions"] == {"player_0": 1, "player_1": 1}


def test_a_release_that_fails_at_the_end_is_said_and_hides_no_other_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError, match="the real one"), RolloutClient(GONE, timeouts=QUICK) as client:
        _in_session(client)
        raise KeyError("the real one")
    assert any("the session was not released" in message for message in caplog.messages)


def test_a_run_folder_that_is_no_text_and_a_host_that_is_none_are_errors_of_ours() -> None:
    with RolloutClient(GONE, timeouts=QUICK) as client, pytest.raises(SettingsError, match="not UTF-8 text"):
        client.open_session(**{**SESSION, "run_id": "/runs/\udcff"})
    with RolloutClient("http://a b", timeouts=QUICK) as client, pytest.raises(ServerError):
        client.health()


def test_introduce_says_what_the_settings_say_and_a_server_of_the_same_model_agrees() -> None:
    from transformers import AutoTokenizer

    from hanabi_grpo.rollout.chat import ChatFormat
    from hanabi_grpo.rollout.handshake import tokenizer_hash
    from hanabi_grpo.runs.fingerprint import model_fingerprint
    from small_models import SHIPPED

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    described = {
        "model_fingerprint": model_fingerprint(SHIPPED),
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "chat_hash": ChatFormat.from_tokenizer(tokenizer).hash,
    }
    settings = Settings(model=str(SHIPPED))
    claims: dict[str, Any] = {"run_id": "r", "adapters": PLAYERS, "lora_rank": 8, "setups": [Setup(HANABI, LAPTOP)]}
    with running_app(**described) as app, RolloutClient(app.url) as client:
        answer = client.introduce(settings, **claims, version=3)
        assert (answer["instance_id"], answer["run_id"], answer["versions"]) == ("test-instance", "r", {})
        thinking = settings.model_copy(update={"dtype": "bfloat16"})
        with pytest.raises(ServerError, match="422: number format differs"):
            client.introduce(thinking, **claims)


def _settings(url: str, seconds: float) -> Settings:
    port = int(url.rpartition(":")[2])
    return Settings(vllm_server_port=port, server_timeout=seconds)


def test_waiting_returns_the_health_of_the_server_that_came() -> None:
    said: list[str] = []
    with running_app() as app:
        health = wait_for_server(_settings(app.url, 5.0), said.append, server_command="bash serve.sh")
    assert health["instance_id"] == "test-instance"
    assert said == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_http("200 OK", b"<html>"), "what answers there is no rollout server: '<html>'"),
        (_http("200 OK", b"{}"), "what answers there is no rollout server: '{}'"),
        (_http("307 X", b"", "location: /x"), "it answers 307"),
        (b"SSH-2.0\r\n\r\n", "RemoteProtocolError"),
    ],
)
def test_waiting_for_something_else_is_bounded_and_says_for_whom_and_why(answer: bytes, reason: str) -> None:
    said: list[str] = []
    with _raw_server(answer) as (url, _), pytest.raises(ServerGoneError) as caught:
        wait_for_server(_settings(url, 0.5), said.append, server_command="bash serve.sh", remind=0.1, poll=0.05)
    assert f"no rollout server at {url} after 0.5 s" in str(caught.value)
    assert reason in str(caught.value)
    assert "Start it in another terminal: bash serve.sh" in str(caught.value)
    assert reason in said[0]
    assert said[0].endswith("Type in another terminal:\n    bash serve.sh")


def test_nobody_is_told_to_start_a_server_where_one_listens_and_is_silent() -> None:
    said: list[str] = []
    with _raw_server(None) as (url, _), pytest.raises(ServerGoneError, match=r"not ready after 0\.5 s: it accepts"):
        wait_for_server(_settings(url, 0.5), said.append, server_command="bash serve.sh", remind=0.1, poll=0.05)
    assert not any("serve.sh" in text for text in said)
