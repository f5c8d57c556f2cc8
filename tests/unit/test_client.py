"""The client's side of a session, receipts, and the wait for a server; bad servers are in tests/faults."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from bad_server import bad_server, http, says, silent
from fake_engine import LAPTOP
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.runs.adapter_config import config_digest, frozen_name
from hanabi_grpo.settings import Settings
from server_app import PEFT_CONFIG, PLAYERS, adapter_bytes, running_app, session_body

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
                *({"seat": "iggi"}, {"seat": f"{NAME}@8"}, {"name": "player_0"}, {"version": 8}, {"version": None}),
                *({"sha256": "0" * 64}, {"config_sha256": "0" * 64}),
            ),
            lambda receipt: receipt,
            lambda client: client.lend(7, BODY, PEFT_CONFIG) == f"{NAME}@7",
        ),
    ],
    ids=["push", "lend"],
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
            with pytest.raises(ServerError, match=r"does not (serve what was trained|hold what was lent|fit)"):
                call(client)
        sent = right
        assert call(client)
        if "receipts" in answer(right):
            with pytest.raises(ServerError, match="receipt for player_1 is None"):
                client.push(7, {"player_0": (BODY, PEFT_CONFIG), "player_1": (BODY, PEFT_CONFIG)})


def test_headers_name_the_run_from_the_opening_to_the_release_and_the_key_is_always_there() -> None:
    with running_app(api_key="k") as app, RolloutClient(app.url, api_key="k") as client:
        assert client.headers == {"authorization": "Bearer k"}
        given = session_body(app.identity, run_id="/runs/jürgen")
        client.open_session(**{name: given[name] for name in given if name not in ("protocol", "trainer_id")})
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
        client.session_timeout = 60.0
        raise KeyError("the real one")
    assert any("the session was not released" in message for message in caplog.messages)


def test_a_run_folder_that_is_no_text_and_a_host_that_is_none_are_errors_of_ours() -> None:
    with RolloutClient(GONE, timeouts=QUICK) as client, pytest.raises(SettingsError, match="not UTF-8 text"):
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
    claims: dict[str, Any] = {"run_id": "r", "adapters": PLAYERS, "lora_rank": 8, "setups": [Setup(HANABI, LAPTOP)]}
    with running_app(**described) as app, RolloutClient(app.url) as client:
        answer = client.introduce(settings, **claims, version=3)
        assert (answer["instance_id"], answer["run_id"], answer["versions"]) == ("test-instance", "r", {})
        with pytest.raises(ServerError, match="422: number format differs"):
            client.introduce(settings.model_copy(update={"dtype": "bfloat16"}), **claims)


def _settings(url: str, seconds: float) -> Settings:
    return Settings(vllm_server_port=int(url.rpartition(":")[2]), server_timeout=seconds)


def test_waiting_returns_the_health_of_the_server_that_came() -> None:
    said: list[str] = []
    with running_app() as app:
        health = wait_for_server(_settings(app.url, 5.0), said.append, server_command="bash serve.sh")
    assert (health["instance_id"], said) == ("test-instance", [])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http(b"<html>"), "what answers there is no rollout server: '<html>'"),
        (http(b"{}"), "what answers there is no rollout server: '{}'"),
        (http(b"", "307 X", "location: /x"), "it answers 307"),
        (b"SSH-2.0\r\n\r\n", "RemoteProtocolError"),
    ],
)
def test_waiting_for_something_else_is_bounded_and_says_for_whom_and_why(answer: bytes, reason: str) -> None:
    said: list[str] = []
    with bad_server(says(answer)) as server, pytest.raises(ServerGoneError) as caught:
        wait_for_server(_settings(server.url, 2.0), said.append, server_command="bash serve.sh", remind=0.1, poll=0.05)
    assert f"no rollout server at {server.url} after 2 s" in str(caught.value)
    assert reason in str(caught.value) and reason in said[0]
    assert "Start it in another terminal: bash serve.sh" in str(caught.value)
    assert said[0].endswith("Type in another terminal:\n    bash serve.sh")


def test_nobody_is_told_to_start_a_server_where_one_listens_and_is_silent() -> None:
    said: list[str] = []
    with bad_server(silent) as server, pytest.raises(ServerGoneError, match=r"not ready after 2 s: it accepts"):
        wait_for_server(_settings(server.url, 2.0), said.append, server_command="bash serve.sh", remind=0.1, poll=0.05)
    assert not any("serve.sh" in text for text in said)
