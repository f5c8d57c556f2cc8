"""Who may play at an OpenEnv server of ours, where, and for how long.

The servers are real ones, and so are the clients: OpenEnv's own, websockets and httpx.
"""

import asyncio
import contextlib
import importlib.util
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip(
    "openenv", reason="the extra openenv is not installed: uv pip install 'hanabi-grpo[openenv]'"
)

import httpx
from openenv.core.generic_client import GenericEnvClient
from starlette.testclient import TestClient
from typer.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from doctor_machines import ROOT
from hanabi_grpo.cli import app as cli
from hanabi_grpo.envs.interop.openenv_places import MAX_MESSAGE
from hanabi_grpo.envs.interop.openenv_server import openenv_app
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.server.main import listen
from hanabi_grpo.server.openenv_door import behind_door
from openenv_servers import serving

SETUP = setup("hanabi", {"preset": "laptop"})
KEY = "0123456789abcdef"
SESSIONS = 2
RESET = json.dumps({"type": "reset", "data": {"seed": 1}})
EVIL = "http://evil.example"
HTTP = httpx.Client(trust_env=False, timeout=60)


def app(**options: Any) -> Any:
    partners = {1: SETUP.environment.policies["iggi"]()}
    return openenv_app(SETUP, 0, partners, sessions=SESSIONS, **options)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(app()) as url:
        yield url


@pytest.fixture(scope="module")
def url_with_key() -> Iterator[str]:
    with serving(app(), api_key=KEY) as url:
        yield url


def first_answer(
    url: str, headers: dict[str, str], path: str = "/ws", at: str | None = None
) -> Any:
    """Return what a reset is answered; how the session was refused is raised.

    Args:
        url: What the server is called.
        headers: More than websockets' own.
        path: Path of the WebSocket.
        at: Where the server is, if that is not what it is called.
    """
    where = httpx.URL(at or url)

    async def ask() -> Any:
        async with connect(
            f"{url.replace('http', 'ws')}{path}",
            host=where.host,
            port=where.port,
            additional_headers=headers,
            proxy=None,
            open_timeout=60,
        ) as session:
            await session.send(RESET)
            return json.loads(await session.recv())

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/ws", "/mcp"])
@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:3000", "https://localhost"])
def test_a_page_of_another_site_gets_no_session(url: str, origin: str, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        first_answer(url, {"origin": origin}, path)
    assert refused.value.response.status_code == 403
    assert (
        f"origin '{origin}': a server without a key accepts"
        in json.loads(refused.value.response.body)["detail"]
    )


def test_a_page_of_another_site_gets_no_answer(url: str) -> None:
    for headers in ({"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        for path in ("/health", "/schema", "/docs", "/state", "/nowhere"):
            assert HTTP.get(f"{url}{path}", headers=headers).status_code == 403, (headers, path)
        assert HTTP.post(f"{url}/reset", headers=headers, json={}).status_code == 403
    # A name that resolves to this machine (DNS rebinding): the page is its own, the host is not.
    with pytest.raises(InvalidStatus) as refused:
        first_answer("http://evil.example:8100", {"origin": "http://evil.example:8100"}, at=url)
    assert refused.value.response.status_code == 403
    assert "host 'evil.example:8100'" in json.loads(refused.value.response.body)["detail"]


def test_programs_of_this_machine_and_the_servers_own_page_are_let_in(url: str) -> None:
    own = url.removeprefix("http://")
    for headers in ({}, {"origin": url}, {"origin": url, "sec-fetch-site": "same-origin"}):
        assert first_answer(url, headers)["type"] == "observation"
        assert HTTP.get(f"{url}/health", headers=headers).status_code == 200
    local = own.replace("127.0.0.1", "localhost")
    assert HTTP.get(f"{url}/health", headers={"host": local}).status_code == 200


def test_a_posted_body_names_its_type_and_has_a_size(url: str) -> None:
    text = HTTP.post(f"{url}/reset", content=b"{}", headers={"content-type": "text/plain"})
    assert text.status_code == 415
    large = HTTP.post(f"{url}/reset", json={"episode_id": "x" * (25 << 20)})
    # FastAPI calls every error of a body 400 in one of the versions.
    assert large.status_code in (400, 413)


def test_without_a_key_other_machines_are_not_let_in_whatever_they_call_the_server() -> None:
    # As if uvicorn listened on every address, which `hanabi-grpo openenv` does not without a key.
    guarded: Any = behind_door(app(), api_key=None, host="0.0.0.0")
    far = TestClient(guarded, base_url="http://localhost", client=("10.0.0.5", 50000))
    answer = far.get("/health")
    assert answer.status_code == 403
    assert "client '10.0.0.5': a server without a key accepts only this machine" in answer.text
    near = TestClient(guarded, base_url="http://localhost", client=("127.0.0.1", 50000))
    assert near.get("/health").status_code == 200


def test_with_a_key_nobody_is_let_in_without_it(url_with_key: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic ?"}):
        assert HTTP.get(f"{url_with_key}/health", headers=headers).status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            first_answer(url_with_key, headers)
        assert refused.value.response.status_code == 401
    wrong = url_with_key.replace("http://", "http://key:wrong@")
    assert HTTP.get(f"{wrong}/health").status_code == 401
    right = {"authorization": f"Bearer {KEY}"}
    assert first_answer(url_with_key, right)["type"] == "observation"
    assert HTTP.get(f"{url_with_key}/health", headers=right).status_code == 200


def test_openenvs_own_client_and_validator_have_the_key_in_the_address(url_with_key: str) -> None:
    from openenv.cli._validation import validate_running_environment

    address = url_with_key.replace("http://", f"http://key:{KEY}@")
    with contextlib.closing(GenericEnvClient(base_url=address).sync()) as client:
        assert client.reset(seed=1).observation["legal"]
    assert validate_running_environment(address, timeout_s=30)["passed"]


def test_strangers_write_nothing_into_the_log(
    url: str, url_with_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for address, headers in ((url, {"origin": EVIL}), (url_with_key, {})):
            with pytest.raises(InvalidStatus):
                first_answer(address, headers)
            HTTP.get(f"{address}/health", headers=headers)
        time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_browser_that_remembers_the_address_does_not_give_the_key_away(url_with_key: str) -> None:
    address = url_with_key.replace("http://", f"http://key:{KEY}@")
    for headers in ({"origin": EVIL}, {"sec-fetch-site": "cross-site"}):
        assert HTTP.get(f"{address}/health", headers=headers).status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        first_answer(address, {"origin": EVIL})
    assert refused.value.response.status_code == 401


def test_one_session_too_many_is_told_to_try_again_later(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "all 2 sessions are in use; try again later"

    async def play() -> None:
        address = f"{url.replace('http', 'ws')}/ws"
        async with (
            connect(address, proxy=None, open_timeout=60) as one,
            connect(address, proxy=None, open_timeout=60) as two,
        ):
            for session in (one, two):
                await session.send(RESET)
                assert json.loads(await session.recv())["type"] == "observation"
            async with connect(address, proxy=None, open_timeout=60) as refused:
                answer = json.loads(await refused.recv())
                assert answer["type"] == "error"
                assert answer["data"]["code"] == "CAPACITY_REACHED"
                assert answer["data"]["message"] == reason
                with pytest.raises(ConnectionClosed) as closed:
                    await refused.recv()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, reason)
            with pytest.raises(Exception, match="try again later"):
                async with GenericEnvClient(base_url=url) as client:
                    await client.reset()
            # Who leaves without waiting for the refusal.
            for _ in range(20):
                connection = await connect(address, proxy=None, open_timeout=60)
                connection.transport.abort()
            await one.send(RESET)
            assert json.loads(await one.recv())["type"] == "observation"
        deadline = time.monotonic() + 60
        while True:
            async with connect(address, proxy=None, open_timeout=60) as free:
                # A refused one may be closed before it has sent anything.
                with contextlib.suppress(ConnectionClosed):
                    await free.send(RESET)
                answer = json.loads(await free.recv())
            if answer["type"] == "observation":
                return
            assert time.monotonic() < deadline, "no place became free"

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
        time.sleep(0.5)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_client_that_leaves_during_its_step_leaves_no_traceback(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        for _ in range(20):
            session = await connect(f"{url.replace('http', 'ws')}/ws", proxy=None, open_timeout=60)
            await session.send(RESET)
            session.transport.abort()
            await asyncio.sleep(0.02)

    with caplog.at_level(logging.WARNING):
        asyncio.run(leave())
        time.sleep(0.5)
    assert [record.getMessage() for record in caplog.records] == []


def test_a_client_names_only_the_splits_that_the_server_was_started_with(url: str) -> None:
    reason = (
        r"split='test': this server offers openenv,train\. .* hanabi-grpo openenv --split "
        r"openenv,train,OTHER"
    )
    with contextlib.closing(GenericEnvClient(base_url=url).sync()) as client:
        for split in ("openenv", "train"):
            client.reset(seed=1, split=split)
            assert client.state()["split"] == split
        client.reset(seed=1)
        assert client.state()["split"] == "openenv"
        with pytest.raises(Exception, match=reason):
            client.reset(seed=1, split="test")
        for split in ("eval", "split-test", "TRAIN", "", None, ["train"], 7):
            with pytest.raises(Exception, match="this server offers openenv,train"):
                client.reset(seed=1, split=split)
    with serving(app(splits=["test"])) as other:
        with contextlib.closing(GenericEnvClient(base_url=other).sync()) as client:
            client.reset(seed=1, split="test")
            with pytest.raises(Exception, match="this server offers test"):
                client.reset(seed=1, split="train")
        with pytest.raises(SettingsError, match="give one or more names"):
            app(splits=[""])


def test_an_idle_session_is_ended_and_its_place_is_free() -> None:
    async def idle(url: str) -> None:
        address = f"{url.replace('http', 'ws')}/ws"
        async with (
            connect(address, proxy=None, open_timeout=60) as one,
            connect(address, proxy=None, open_timeout=60) as two,
        ):
            for session in (one, two):
                await session.send(RESET)
                assert json.loads(await session.recv())["type"] == "observation"
                with pytest.raises(ConnectionClosed) as closed:
                    await asyncio.wait_for(session.recv(), 60)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
                assert closed.value.rcvd.reason == ("no message for 1 s; connect again to continue")
                # Not before its own time is over.
                break
            async with connect(address, proxy=None, open_timeout=60) as other:
                await other.send(RESET)
                assert json.loads(await other.recv())["type"] == "observation"

    with serving(app(idle_seconds=1.0)) as url:
        asyncio.run(idle(url))


def test_only_a_connection_holds_a_place(url: str) -> None:
    create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}
    for _ in range(SESSIONS + 1):
        answer = HTTP.post(f"{url}/mcp", json=create).json()
        assert answer["error"]["message"] == "MCP is not supported: play over the WebSocket /ws."
    assert first_answer(url, {})["type"] == "observation"


@pytest.mark.parametrize("limit", [MAX_MESSAGE, 16 << 20], ids=["ours", "uvicorn's own"])
def test_a_message_that_is_too_long_ends_its_session_alone(limit: int) -> None:
    long = json.dumps({"type": "step", "data": {"reply": "x" * MAX_MESSAGE}})

    async def play(url: str) -> None:
        address = f"{url.replace('http', 'ws')}/ws"
        async with (
            connect(address, proxy=None, open_timeout=60) as one,
            connect(address, proxy=None, open_timeout=60) as two,
        ):
            await one.send(RESET)
            await one.recv()
            await two.send(long)
            with pytest.raises(ConnectionClosed) as closed:
                await two.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
            await one.send(json.dumps({"type": "step", "data": {"reply": "x" * 100_000}}))
            assert json.loads(await one.recv())["data"]["observation"]["kind"] == "unparsable"

    with serving(app(), ws_max_size=limit) as url:
        asyncio.run(play(url))


def test_an_address_that_other_machines_reach_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANABI_API_KEY", raising=False)
    command = ["openenv", "--env", "kuhn_poker", "--host", "0.0.0.0"]
    answer = CliRunner().invoke(cli, command)
    assert answer.exit_code == 2
    assert answer.stderr.replace("\n", " ").strip() == (
        "error: --host='0.0.0.0': an address that other machines can reach needs HANABI_API_KEY. "
        'Set it here, e.g. export HANABI_API_KEY="$(openssl rand -hex 16)", and in the '
        "clients' URL, http://key:KEY@0.0.0.0; or listen on 127.0.0.1."
    )
    monkeypatch.setenv("HANABI_API_KEY", "short")
    answer = CliRunner().invoke(cli, command)
    assert "HANABI_API_KEY of at least 16 characters; this one has 5" in answer.stderr


def test_a_port_in_use_is_refused_with_the_exit_code_of_a_refusal() -> None:
    with listen("127.0.0.1", 0) as used:
        port = used.getsockname()[1]
        answer = CliRunner().invoke(cli, ["openenv", "--env", "kuhn_poker", "--port", str(port)])
    assert answer.exit_code == 2
    assert answer.stderr.replace("\n", " ").strip() == (
        f"error: --host 127.0.0.1 --port {port}: cannot listen there (Address already in use). "
        "Stop the process on that port, or choose another --port."
    )
    assert answer.stdout == ""


def test_the_package_for_images_needs_a_key_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANABI_API_KEY", raising=False)
    monkeypatch.setenv("HANABI_HOST", "0.0.0.0")
    path = ROOT / "integrations" / "openenv" / "server" / "app.py"
    spec = importlib.util.spec_from_file_location("openenv_package", path)
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    with pytest.raises(
        SettingsError, match=r"HANABI_HOST='0.0.0.0'.* needs HANABI_API_KEY\. Set it"
    ):
        package.main()
    # Whoever serves the app by other means opens it to nobody either.
    far = TestClient(package.app, base_url="http://localhost", client=("10.0.0.5", 50000))
    assert far.get("/health").status_code == 403
    monkeypatch.setenv("HANABI_API_KEY", KEY)
    spec.loader.exec_module(package)
    far = TestClient(package.app, base_url="http://10.0.0.4", client=("10.0.0.5", 50000))
    assert far.get("/health").status_code == 401
    assert far.get("/health", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
