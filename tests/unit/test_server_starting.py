"""What clients are told between the server's first second and its engine's."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.errors import ServerGoneError
from hanabi_grpo.server import assembly, main
from hanabi_grpo.server.limits import Limits
from hanabi_grpo.settings import Settings


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, Callable[[], None]]]:
    """Run the server's main coroutine with an engine that starts when told; give the settings and what tells it."""
    go, engine = threading.Event(), SimpleNamespace(is_dead=False)

    @contextlib.contextmanager
    def rollout_server(*_: Any) -> Iterator[Any]:
        # Like the real one it keeps the event loop to itself.
        assert go.wait(60)
        app = JSONResponse({"instance_id": "i"})
        yield SimpleNamespace(app=app, engine=engine, limits=Limits(), identity=SimpleNamespace(instance_id="i"))

    monkeypatch.setattr(assembly, "rollout_server", rollout_server)
    monkeypatch.setattr(assembly, "prepare_environment", lambda on_cpu: None)
    # The end below is an engine's death to it: later that would end the test process, in some other test.
    monkeypatch.setattr(signal, "alarm", lambda seconds: None)
    listener = main._listen("127.0.0.1", 0)
    settings = Settings(vllm_server_port=listener.getsockname()[1])
    run = main._run(settings, [], listener)
    thread = threading.Thread(target=asyncio.run, args=(run,))
    thread.start()
    yield settings, go.set
    go.set()
    engine.is_dead = True
    thread.join()


def test_from_its_first_second_the_port_says_that_the_server_is_starting(
    starting: tuple[Settings, Callable[[], None]],
) -> None:
    settings, go = starting
    url = f"http://127.0.0.1:{settings.vllm_server_port}"
    for answer in (httpx.get(f"{url}/health/", trust_env=False), httpx.post(f"{url}/rollout/", content=b"{}")):
        assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
        assert answer.json()["status"] == "starting" and answer.json()["seconds"] >= 0
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        go()

    # Nobody is told to start a server that is starting.
    assert wait_for_server(settings, say, server_command="never said", poll=0.01) == {"instance_id": "i"}
    assert [line.rstrip("0123456789 s") for line in said] == [
        f"the rollout server at {url} is starting,",
        f"the rollout server at {url} is ready.",
    ]


def test_reminders_grow_rarer_and_a_server_that_stays_starting_is_given_up_on(
    starting: tuple[Settings, Callable[[], None]],
) -> None:
    settings = starting[0].model_copy(update={"server_timeout": 1.0})
    said: list[str] = []
    with pytest.raises(ServerGoneError, match=r"not ready after 1 s: it is starting, .*HANABI_SERVER_TIMEOUT"):
        wait_for_server(settings, said.append, server_command="never said", remind=0.1, poll=0.01)
    # At 0, 0.1, 0.3 and 0.7 s where nothing else holds the test up.
    assert 1 <= len(said) <= 4
