"""The client's side of sessions, receipts and guest adapters, and the wait for a server.

Bad servers are in tests/faults.
"""

import hashlib
import json
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from bad_server import bad_server, http, says, silent
from fake_engine import LAPTOP, task
from hanabi_grpo.client import calls
from hanabi_grpo.client.calls import bounded_client
from hanabi_grpo.client.fleet import side_by_side
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.runs.adapter_config import config_digest, frozen_name
from hanabi_grpo.server import adapter_loader
from hanabi_grpo.settings import Settings
from local_service import LocalService, QuietHandler, served
from server_app import (
    PEFT_CONFIG,
    PLAYERS,
    adapter_bytes,
    open_session,
    push_to,
    running_app,
    upload_headers,
)

QUICK = ClientTimeouts(connect=0.2, health=0.2, answer=0.2, rollout=0.2)
GONE = "http://127.0.0.1:1"
BODY = adapter_bytes(0.1)
SHA256 = hashlib.sha256(BODY).hexdigest()
NAME = frozen_name(SHA256, PEFT_CONFIG)
DIGESTS = {"version": 7, "sha256": SHA256, "config_sha256": config_digest(PEFT_CONFIG)}


@pytest.mark.parametrize(
    ("right", "wrongs", "answer", "call"),
    [
        (
            {**DIGESTS, "lora_name": "x"},
            ({"version": 0}, {"sha256": "0" * 64}, {"config_sha256": "0" * 64}),
            lambda receipt: {"instance_id": "i", "receipts": {"player_0": receipt}},
            lambda client: client.push(7, {"player_0": (BODY, PEFT_CONFIG)})["instance_id"] == "i",
        ),
        (
            {**DIGESTS, "seat": f"{NAME}@7", "name": NAME, "instance_id": "i"},
            (
                {"seat": "iggi"},
                {"seat": f"{NAME}@8"},
                {"name": "player_0"},
                {"version": 8},
                {"version": None},
                {"sha256": "0" * 64},
                {"config_sha256": "0" * 64},
            ),
            lambda receipt: receipt,
            lambda client: client.upload_guest(7, BODY, PEFT_CONFIG) == f"{NAME}@7",
        ),
    ],
    ids=["push", "guest"],
)
def test_a_receipt_that_is_not_for_what_was_sent_is_an_error(
    right: dict[str, Any],
    wrongs: tuple[dict[str, Any], ...],
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    call: Callable[[RolloutClient], bool],
) -> None:
    sent: dict[str, Any] = {}

    def behave(connection: Any, head: bytes) -> None:
        says(http(json.dumps(answer(sent)).encode()))(connection, head)

    with bad_server(behave) as server, RolloutClient(server.url) as client:
        for wrong in wrongs:
            sent = {**right, **wrong}
            with pytest.raises(
                ServerError, match=r"does not (serve what was trained|hold what was uploaded|fit)"
            ):
                call(client)
        sent = right
        assert call(client)
        if "receipts" in answer(right):
            with pytest.raises(ServerError, match="receipt for player_1 is None"):
                client.push(7, {"player_0": (BODY, PEFT_CONFIG), "player_1": (BODY, PEFT_CONFIG)})


class _KeepsAll(QuietHandler):
    """Takes an upload in small pieces."""

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, 64 << 10)))
        self.give(b"{}")


def test_adapters_of_a_push_are_sent_and_checked_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_came = threading.Barrier(len(PLAYERS), timeout=10)
    check_adapter = adapter_loader.check_adapter

    def check_when_all_came(*args: Any, **fields: Any) -> None:
        all_came.wait()
        check_adapter(*args, **fields)

    monkeypatch.setattr(adapter_loader, "check_adapter", check_when_all_came)
    with running_app() as app, RolloutClient(app.url) as client:
        open_session(client, app, run_id=client.trainer_id)
        adapters = {name: (adapter_bytes(0.1), PEFT_CONFIG) for name in PLAYERS}
        receipts = client.push(1, adapters)["receipts"]
        assert sorted(receipts) == sorted(PLAYERS)


def test_an_upload_is_not_copied_again_for_every_piece_that_is_sent() -> None:
    body = bytes(64 << 20)
    with served(LocalService(_KeepsAll)) as server, bounded_client(timeout=60.0) as http_client:
        tracemalloc.start()
        try:
            answer = http_client.put(server.url, content=body)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert answer.status_code == 200
    assert peak < len(body) / 4


def test_answers_of_several_servers_are_decoded_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = calls.read_struct
    at_once: list[int] = []
    decoding = 0

    def count(kind: type, content: bytes) -> Any:
        nonlocal decoding
        decoding += 1
        at_once.append(decoding)
        time.sleep(0.05)
        decoding -= 1
        return decode(kind, content)

    monkeypatch.setattr(calls, "read_struct", count)
    with bad_server(says(http(b"{}"))) as server:
        clients = {str(number): RolloutClient(server.url) for number in range(4)}
        answers = side_by_side({name: client.health for name, client in clients.items()})
        for client in clients.values():
            client.close()
    assert answers == [{}] * 4
    assert at_once == [1] * 4


def test_headers_name_the_run_from_the_opening_to_the_release_and_the_key_is_always_there() -> None:
    with running_app(api_key="k") as app, RolloutClient(app.url, api_key="k") as client:
        assert client.headers == {"authorization": "Bearer k"}
        open_session(client, app, run_id="/runs/jürgen")
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


def test_a_release_that_fails_at_the_end_is_said_and_hides_no_other_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        pytest.raises(KeyError, match="the real one"),
        RolloutClient(GONE, timeouts=QUICK) as client,
    ):
        client.session_timeout = 60.0
        raise KeyError("the real one")
    assert any("the session was not released" in message for message in caplog.messages)


def test_a_run_folder_that_is_no_text_and_a_host_that_is_none_are_errors_of_ours() -> None:
    with (
        RolloutClient(GONE, timeouts=QUICK) as client,
        pytest.raises(SettingsError, match="not UTF-8 text"),
    ):
        client.open_session(run_id="/runs/\udcff")
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
    claims: dict[str, Any] = {
        "run_id": "r",
        "adapters": PLAYERS,
        "lora_rank": 8,
        "setups": [Setup(HANABI, LAPTOP)],
    }
    with running_app(**described) as app, RolloutClient(app.url) as client:
        answer = client.introduce(settings, **claims, version=3)
        assert answer["instance_id"] == "test-instance"
        assert answer["run_id"] == "r"
        assert answer["versions"] == {}
        with pytest.raises(ServerError, match="422: number format differs"):
            client.introduce(settings.model_copy(update={"dtype": "bfloat16"}), **claims)


def test_games_that_were_not_asked_for_and_tasks_that_cannot_be_played_are_errors() -> None:
    def play(client: RolloutClient, **other: Any) -> None:
        client.play(
            [{**task(3), **other}],
            num_games=2,
            max_tokens=4,
            temperature=1.0,
            seats=["base", "base"],
        )

    for answer, message in (
        ({"detail": "x"}, "episodes: this field is missing"),
        (
            {"episodes": [], "dropped": [{"task": 0, "game": 0}]},
            "dropped.0.reason: this field is missing",
        ),
        ({"episodes": [], "dropped": []}, "0 games and 0 dropped ones for 2"),
    ):
        with (
            bad_server(says(http(json.dumps(answer).encode()))) as server,
            RolloutClient(server.url) as client,
        ):
            with pytest.raises(ServerError, match=message) as caught:
                play(client)
            assert str(caught.value).startswith(f"{server.url}: playing games: ")
    bad: dict[str, Any] = {
        "suite": "../x",
        "seed": -1,
        "seats": "iggi",
        "env_config": {"preset": "nowhere"},
    }
    for name, value in bad.items():
        with RolloutClient(GONE) as client, pytest.raises(SettingsError, match=name):
            play(client, **{name: value})


def settings_of(url: str, seconds: float) -> Settings:
    """Settings that name one server and wait so long for it."""
    return Settings(vllm_server_port=int(url.rpartition(":")[2]), server_timeout=seconds)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http(b"<html>"), "what answers there is not a rollout server: '<html>'"),
        (http(b"{}"), "what answers there is not a rollout server: '{}'"),
        (http(b"", "307 X", "location: /x"), "it answers 307"),
        (b"SSH-2.0\r\n\r\n", "RemoteProtocolError"),
    ],
)
def test_waiting_for_something_else_is_bounded_and_says_for_whom_and_why(
    answer: bytes, reason: str
) -> None:
    said: list[str] = []
    with bad_server(says(answer)) as server, pytest.raises(ServerGoneError) as caught:
        wait_for_server(
            settings_of(server.url, 2.0),
            said.append,
            server_command="bash serve.sh",
            instead="Or add --own-server.",
            remind=0.1,
            poll=0.05,
        )
    assert f"no rollout server at {server.url} after 2 s" in str(caught.value)
    assert reason in str(caught.value)
    assert reason in said[0]
    assert "Start it in another terminal: bash serve.sh" in str(caught.value)
    instead = "Or add --own-server."
    assert said[0].endswith(f"Type in another terminal:\n    bash serve.sh\n{instead}")
    assert str(caught.value).endswith(instead)


def test_a_number_of_seconds_that_is_none_does_not_end_the_wait() -> None:
    seconds = b"1" * 400
    starting = says(http(b'{"status": "starting", "seconds": ' + seconds + b"}"))
    with (
        bad_server(starting) as server,
        pytest.raises(ServerGoneError, match=r"is not ready after 0\.2 s: it is starting"),
    ):
        wait_for_server(
            settings_of(server.url, 0.2), lambda line: None, server_command="bash serve.sh"
        )


def test_a_server_that_says_to_ask_again_at_once_is_asked_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("hanabi_grpo.client.calls.time.sleep", pauses.append)
    answers = [
        httpx.Response(503, headers={"retry-after": "0"}),
        httpx.Response(429, headers={"retry-after": "2"}),
        httpx.Response(200, content=b"{}"),
    ]

    def ask() -> httpx.Response:
        return answers.pop(0)

    assert calls.call("here", dict, ask, "identity", tries=1, patience=60.0) == {}
    assert pauses == [0.5, 2.0]


def test_nobody_is_told_to_start_a_server_where_one_listens_and_is_silent() -> None:
    said: list[str] = []
    with (
        bad_server(silent) as server,
        pytest.raises(ServerGoneError, match=r"not ready after 2 s: it accepts"),
    ):
        wait_for_server(
            settings_of(server.url, 2.0),
            said.append,
            server_command="bash serve.sh",
            remind=0.1,
            poll=0.05,
        )
    assert not any("serve.sh" in text for text in said)


def test_a_guest_adapter_needs_no_session_and_the_identity_lists_what_is_held() -> None:
    with running_app() as app, RolloutClient(app.url) as client:
        body = adapter_bytes(0.5)
        seat = client.upload_guest(50, body, PEFT_CONFIG)
        assert seat == f"{frozen_name(hashlib.sha256(body).hexdigest(), PEFT_CONFIG)}@50"
        assert client.upload_guest(50, body, PEFT_CONFIG) == seat
        before = client.identity()
        assert before["frozen"] == [seat]
        assert before["adapters"] == {}
        assert before["versions"] == {}
        expected = {}
        for name, weights in push_to(client, app, version=4).items():
            expected[name] = {"version": 4, "sha256": hashlib.sha256(weights).hexdigest()}
        after = client.identity()
        assert after["adapters"] == expected
        assert after["frozen"] == [seat]
        client.release()
        assert client.identity()["frozen"] == [seat]
        assert len(app.engine.loaded) == 3


GUEST = adapter_bytes(0.5)
HEADERS = upload_headers(GUEST)


@pytest.mark.parametrize(
    ("params", "headers", "reason"),
    [
        ({}, HEADERS, "version"),
        ({"version": "-1"}, HEADERS, "version"),
        ({"version": str(2**31)}, HEADERS, "version"),
        ({"version": "1"}, {"x-sha256": HEADERS["x-sha256"]}, "x-peft-config"),
        ({"version": "1"}, {**HEADERS, "x-peft-config": '{"r":' * 9000}, "recursion depth"),
        (
            {"version": "1"},
            {**HEADERS, "x-peft-config": "[]"},
            "Expected `object`, got `array`",
        ),
        ({"version": "1"}, {**HEADERS, "x-peft-config": '{"r": NaN}'}, "JSON is malformed"),
    ],
)
def test_a_guest_adapter_that_is_none_is_refused_with_the_reason(
    params: dict[str, str], headers: dict[str, str], reason: str
) -> None:
    with running_app() as app, httpx.Client(base_url=app.url, trust_env=False) as http:
        answer = http.put("/frozen/", params=params, content=GUEST, headers=headers)
        assert answer.status_code == 422
        assert reason in answer.json()["detail"]
        assert app.store.frozen.names() == []
        assert app.engine.loaded == {}


def test_a_guest_adapter_that_is_too_large_is_413_and_the_route_only_takes_uploads() -> None:
    with running_app() as app, httpx.Client(base_url=app.url, trust_env=False) as http:
        too_long = http.put(
            "/frozen/", params={"version": 1}, content=b"\0" * (2 << 20), headers=HEADERS
        )
        assert too_long.status_code == 413
        assert http.get("/frozen/").status_code == 405
        assert app.store.frozen.names() == []
        assert app.engine.loaded == {}
