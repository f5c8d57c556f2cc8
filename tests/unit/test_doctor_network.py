"""The doctor's checks of ports and of the running server, with real sockets and processes."""

import socket
from pathlib import Path
from typing import Any

import pytest

from doctor_machines import answering, find, make_model, only
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.commands.doctor.server import port_checks, server_checks
from hanabi_grpo.errors import ServerError
from hanabi_grpo.runs.run_folder import public_run, run_identity
from hanabi_grpo.server.identity import ServerIdentity
from hanabi_grpo.server.serving import starting_server
from hanabi_grpo.settings import Settings
from ports import closed_port, free_port
from server_app import make_identity, running_app, session_body


def test_a_free_port_is_free_again_after_the_check() -> None:
    port = free_port()
    assert only(find(port_checks, PORT=port)).finding == f"127.0.0.1:{port} is free"
    assert only(find(port_checks, PORT=port)).finding == f"127.0.0.1:{port} is free"


def test_a_port_of_another_program_is_named_and_the_remedy_is_another_port() -> None:
    with answering(200, "hello") as port:
        check = only(find(port_checks, PORT=port))
    assert check.status == "fail"
    assert check.finding.endswith(f":{port} is used by another program")
    choose_port, show_owner = check.remedy.splitlines()
    assert choose_port.startswith("export PORT=")
    # Never how to end the program: it may be somebody's healthy server.
    assert show_owner.startswith(f"ss -ltnp 'sport = :{port}'")
    _, _, proposed = choose_port.rpartition("=")
    assert only(find(port_checks, PORT=proposed)).status == "ok"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("doctor") / "model")


def identity(folder: Path) -> dict[str, Any]:
    """Return what a free server with this model says of itself."""
    facts = make_identity(model=str(folder), instance_id="abc", max_model_len=1024)
    return {**facts.model_dump(), "run": None}


def test_each_server_of_a_list_is_asked(folder: Path) -> None:
    with answering(200, identity(folder), key="k") as port, closed_port() as closed:
        hosts = f"127.0.0.1:{port},127.0.0.1:{closed}"
        first, second = find(
            server_checks, MODEL=folder, VLLM_SERVER_HOST=hosts, HANABI_API_KEY="k"
        )
    assert first.status == "ok"
    assert f"127.0.0.1:{port} answers (instance abc" in first.finding
    assert second.status == "skip"
    assert "the trainer waits for it" in second.finding


def test_a_server_without_a_key_is_asked_without_one(folder: Path) -> None:
    with answering(200, identity(folder)) as port:
        check = only(find(server_checks, MODEL=folder, VLLM_SERVER_PORT=port))
    assert check.status == "ok"


def test_a_server_that_works_for_a_living_trainer_is_no_server_for_another(
    folder: Path, tmp_path: Path
) -> None:
    facts = {}
    for name, value in identity(folder).items():
        if name in ServerIdentity.model_fields:
            facts[name] = value
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.json").write_text("{}")
    with running_app(**facts) as app, RolloutClient(app.url) as client:
        session = session_body(app.identity, run_id=run_identity(run))
        del session["protocol"]
        del session["trainer_id"]
        client.open_session(**session)
        given = {"MODEL": folder, "VLLM_SERVER_PORT": app.port}

        assert only(find(server_checks, "trainer", **given)).status == "fail"
        check = only(find(server_checks, "both", **given))
        assert check.status == "warn"
        assert "whose trainer is alive; a second trainer is refused (409)" in check.finding
        assert public_run(run_identity(run)) in check.finding
        assert f"export PORT={app.port + 1}" in check.remedy
        assert "kill" not in check.remedy
        assert "Ctrl-C" not in check.remedy

        successor = {"OUTPUT_DIR": run, "RESUME": "latest"}
        assert only(find(server_checks, "trainer", **given, **successor)).status == "ok"
        client.release()
        assert only(find(server_checks, "trainer", **given)).status == "ok"


def check_answer(
    folder: Path, status: int, body: dict[str, Any] | str, key: str | None = None
) -> str:
    """Check a server that answers so, which must fail; return the finding."""
    with answering(status, body, key=key) as port:
        check = only(
            find(server_checks, MODEL=folder, VLLM_SERVER_PORT=port, HANABI_API_KEY="wrong")
        )
    assert check.status == "fail"
    return check.finding


def test_a_wrong_key_fails(folder: Path) -> None:
    assert "refuses this key (401)" in check_answer(folder, 200, identity(folder), key="k")


def test_a_dead_engine_fails(folder: Path) -> None:
    body = {"instance_id": "abc", "status": "engine dead: restart this server"}
    assert "engine dead" in check_answer(folder, 503, body)


def test_another_program_or_another_version_fails(folder: Path) -> None:
    assert "what answers there is not a rollout server" in check_answer(folder, 200, "hello")
    assert "does not identify itself" in check_answer(folder, 200, {"instance_id": "abc"})


def test_a_server_that_says_that_it_is_starting_is_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, starting_server(listener):
        port = listener.getsockname()[1]
        assert only(find(port_checks, PORT=port)).status == "ok"
        check = only(find(server_checks, VLLM_SERVER_PORT=port))
    assert check.status == "skip"
    assert check.remedy == ""
    assert check.finding.startswith(f"127.0.0.1:{port} is starting")


def test_a_host_name_that_the_server_refuses_is_named_with_one_that_it_accepts() -> None:
    with running_app() as app:
        check = only(find(server_checks, VLLM_SERVER_HOST="127.1", VLLM_SERVER_PORT=app.port))
        assert check.status == "fail"
        assert check.remedy == "export VLLM_SERVER_HOST=127.0.0.1"
        assert (
            f"127.1:{app.port} answers 403: host '127.1:{app.port}', sec-fetch-site 'none': a "
            "server without a key" in check.finding
        )
        settings = Settings(vllm_server_host="127.1", vllm_server_port=app.port)
        refusal = r"answers 403: host '127\.1:.* 127\.0\.0\.1, localhost"
        with pytest.raises(ServerError, match=refusal):
            wait_for_server(settings, print, server_command="x")
