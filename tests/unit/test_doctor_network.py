"""Ports and the running server; with real sockets and processes."""

import socket
from pathlib import Path
from typing import Any

import pytest

from doctor_machines import answering, find, free_port, make_model, only
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.commands.doctor.server import port_checks, server_checks
from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.run_folder import public_run, run_identity
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.serving import starting_server
from hanabi_grpo.settings import Settings
from server_app import make_identity, running_app, session_body


def test_a_port_is_free_or_what_holds_it_is_named_and_never_told_to_be_ended() -> None:
    port = free_port()
    for _ in range(2):
        assert only(find(port_checks, PORT=port)).finding == f"127.0.0.1:{port} is free"
    with answering(200, "hello") as port:
        check = only(find(port_checks, PORT=port))
    assert check.status == "fail" and check.finding.endswith(f":{port} is used by another program")
    move, look = check.remedy.splitlines()
    assert move.startswith("export PORT=") and look.startswith(f"ss -ltnp 'sport = :{port}'")
    assert only(find(port_checks, PORT=move.split("=")[-1])).status == "ok"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("doctor") / "model")


def identity(folder: Path) -> dict[str, Any]:
    return {
        **make_identity(model=str(folder), instance_id="abc", max_model_len=1024).model_dump(),
        "run": None,
    }


def test_each_server_of_a_list_is_asked(folder: Path) -> None:
    with answering(200, identity(folder), key="k") as port:
        hosts = f"127.0.0.1:{port},127.0.0.1:{free_port()}"
        first, second = find(
            server_checks, MODEL=folder, VLLM_SERVER_HOST=hosts, HANABI_API_KEY="k"
        )
    assert first.status == "ok" and f"127.0.0.1:{port} answers (instance abc" in first.finding
    assert second.status == "skip" and "the trainer waits for it" in second.finding
    with answering(200, identity(folder)) as port:
        assert only(find(server_checks, MODEL=folder, VLLM_SERVER_PORT=port)).status == "ok"


def test_a_server_that_works_for_a_living_trainer_is_no_server_for_another(
    folder: Path, tmp_path: Path
) -> None:
    here = {
        key: value for key, value in identity(folder).items() if key in ServerIdentity.model_fields
    }
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.json").write_text("{}")
    with running_app(**here) as app, RolloutClient(app.url) as client:
        body = session_body(app.identity, run_id=run_identity(run))
        client.open_session(
            **{name: body[name] for name in body if name not in ("protocol", "trainer_id")}
        )
        given = {"MODEL": folder, "VLLM_SERVER_PORT": app.port}
        for role, status in (("trainer", "fail"), ("both", "warn")):
            check = only(find(server_checks, role, **given))
            assert (
                check.status == status
                and "whose trainer is alive: another is answered 409" in check.finding
            )
            assert (
                public_run(run_identity(run)) in check.finding
                and f"export PORT={app.port + 1}" in check.remedy
            )
            assert "kill" not in check.remedy and "Ctrl-C" not in check.remedy
        own = {"OUTPUT_DIR": run, "RESUME": "latest"}
        assert only(find(server_checks, "trainer", **given, **own)).status == "ok"
        client.release()
        assert only(find(server_checks, "trainer", **given)).status == "ok"


def test_a_wrong_key_a_dead_engine_and_strangers_fail(folder: Path) -> None:
    for status, body, key, said in (
        (200, identity(folder), "k", "refuses this key (401)"),
        (
            503,
            {"instance_id": "abc", "status": "engine dead: restart this server"},
            None,
            "engine dead",
        ),
        (200, "hello", None, "what answers there is no rollout server"),
        (200, {"instance_id": "abc"}, None, "does not say what it is"),
    ):
        with answering(status, body, key=key) as port:
            check = only(
                find(server_checks, MODEL=folder, VLLM_SERVER_PORT=port, HANABI_API_KEY="wrong")
            )
        assert check.status == "fail" and said in check.finding


def test_a_server_that_says_that_it_is_starting_is_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, starting_server(listener):
        port = listener.getsockname()[1]
        assert only(find(port_checks, PORT=port)).status == "ok"
        check = only(find(server_checks, VLLM_SERVER_PORT=port))
    assert (check.status, check.remedy) == ("skip", "")
    assert check.finding.startswith(f"127.0.0.1:{port} is starting")


def test_a_name_that_a_server_without_a_key_does_not_answer_to_is_told_with_the_one_that_it_does() -> (
    None
):
    with running_app() as app:
        check = only(find(server_checks, VLLM_SERVER_HOST="127.1", VLLM_SERVER_PORT=app.port))
        assert check.status == "fail" and check.remedy == "export VLLM_SERVER_HOST=127.0.0.1"
        assert (
            f"127.1:{app.port} answers 403: host '127.1:{app.port}', sec-fetch-site 'none': a "
            "server without a key" in check.finding
        )
        with pytest.raises(
            ServerError, match=r"answers 403: host '127\.1:.* 127\.0\.0\.1, localhost"
        ):
            wait_for_server(
                Settings(vllm_server_host="127.1", vllm_server_port=app.port),
                print,
                server_command="x",
            )
