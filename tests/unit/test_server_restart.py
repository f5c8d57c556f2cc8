"""A server that is starting says so; one that dies is started again, so many times."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from starlette.responses import JSONResponse

from hanabi_grpo.client.waiting import wait_for_server
from hanabi_grpo.server import assembly, main
from hanabi_grpo.settings import Settings
from server_app import rollout_body, running_app

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "dying_server.py"
INTERRUPTED_SCRIPT = ROOT / "tests" / "interrupted_server.py"
PATIENCE = 60.0
"""Seconds for a process to come or to end."""


def wait_for_ends(*pids: int) -> None:
    """Wait until processes are gone."""
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert alive == []


class DyingServer:
    """The parent, and the serving processes that it has started."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"

    def images(self) -> list[dict[str, Any]]:
        """What each serving process so far wrote of itself."""
        file = self.folder / "images"
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text().splitlines()]

    def wait_for(self, number: int) -> dict[str, Any]:
        """Wait until serving process `number`, from 1, answers."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            images = self.images()
            if len(images) >= number:
                image = images[number - 1]
                with contextlib.suppress(httpx.TransportError):
                    answer = httpx.get(f"{self.url}/identity/", trust_env=False).json()
                    if answer["instance_id"] == image["instance"]:
                        return image
            time.sleep(0.05)
        raise AssertionError(
            f"serving process {number} did not come; exit code {self.process.poll()}"
        )

    def kill_engine(self) -> None:
        (self.folder / "die").touch()

    def end(self) -> tuple[int, str]:
        """Wait for the parent's end; return its code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        for image in self.images():
            wait_for_ends(image["pid"], *image["family"])
        return self.process.returncode, output


@pytest.fixture
def dying(
    start_process: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> Callable[..., DyingServer]:
    def start(**environment: str) -> DyingServer:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(SCRIPT), str(port), str(tmp_path)]
        variables = {**os.environ, **environment}
        process = start_process(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return DyingServer(process, port, tmp_path)

    return start


@pytest.mark.parametrize("core", ["hangs", "dead"])
def test_after_an_engines_death_parent_and_port_stay_and_nothing_of_the_dead_process_does(
    dying: Callable[..., DyingServer], core: str
) -> None:
    server = dying(CORE=core)
    first = server.wait_for(1)
    server.kill_engine()
    second = server.wait_for(2)
    assert psutil.Process(second["pid"]).ppid() == server.process.pid
    assert second["pid"] != first["pid"]
    assert second["instance"] != first["instance"]
    assert second["left"] == [], "the engine core or a worker of the dead process was still there"
    assert second["deathsig"] == first["deathsig"] == signal.SIGKILL
    assert second["blocked"] == first["blocked"] == []
    assert second["files"] == first["files"], "files of the dead process are still open"
    assert first["library"] == "0"
    assert second["library"] == "1"


@pytest.mark.rest
def test_a_killed_process_is_started_again_and_after_a_healthy_time_the_count_begins_anew(
    dying: Callable[..., DyingServer],
) -> None:
    server = dying(ALLOWED="1", HEALTHY="0")
    for number in (1, 2, 3):
        os.kill(server.wait_for(number)["pid"], signal.SIGKILL)
    assert server.wait_for(4)["left"] == []
    server.process.terminate()
    code, output = server.end()
    assert code == 143
    assert output.count("server process killed by SIGKILL") == 3


@pytest.mark.rest
def test_after_the_last_restart_the_server_ends_with_code_70_and_says_why(
    dying: Callable[..., DyingServer],
) -> None:
    # The second start fails: what the dead one held may not be free yet, so that is a death too.
    server = dying(ALLOWED="2")
    (server.folder / "fail").touch()
    for number in (1, 2):
        server.wait_for(number)
        server.kill_engine()
    code, output = server.end()
    assert code == 70
    assert len(server.images()) == 2
    assert "engine dead after" in output
    assert "the server starts again (1 of 2)" in output
    assert "the server did not start again and ended after" in output
    assert "the server starts again (2 of 2)" in output
    assert "HANABI_ENGINE_RESTARTS=2 is used up: the server ends (exit code 70)" in output


@pytest.mark.rest
def test_a_clean_up_that_hangs_holds_neither_the_restart_nor_the_end_up(
    dying: Callable[..., DyingServer],
) -> None:
    server = dying(HANG="1", ALLOWED="1")
    server.wait_for(1)
    server.kill_engine()
    assert server.wait_for(2)["left"] == []
    server.kill_engine()
    code, _ = server.end()
    assert code == 70


@pytest.mark.rest
@pytest.mark.parametrize(
    ("number", "expected", "receiver"),
    [(signal.SIGTERM, 143, "the group"), (signal.SIGINT, 130, "the parent")],
)
def test_a_signal_to_end_is_forwarded_and_ends_everything(
    dying: Callable[..., DyingServer], number: signal.Signals, expected: int, receiver: str
) -> None:
    server = dying()
    first = server.wait_for(1)
    server.process.send_signal(number)
    if receiver == "the group":
        os.kill(first["pid"], number)
    code, _ = server.end()
    assert code == expected
    assert len(server.images()) == 1


@pytest.mark.parametrize("moment", ["at the end", "at the fork"])
def test_ctrl_c_in_the_terminal_between_two_serving_processes_ends_the_server(
    start_process: Callable[..., "subprocess.Popen[str]"], moment: str
) -> None:
    server = start_process(
        [sys.executable, str(INTERRUPTED_SCRIPT), moment],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    output, _ = server.communicate(timeout=2 * PATIENCE)
    assert output == ""
    assert server.returncode == 130


def test_kill_9_of_the_parent_ends_the_serving_process(dying: Callable[..., DyingServer]) -> None:
    server = dying()
    first = server.wait_for(1)
    # The real engine asks the kernel for the same, see `plugin`; this one has to be killed here.
    family = [psutil.Process(pid) for pid in first["family"]]
    server.process.kill()
    wait_for_ends(first["pid"])
    for process in family:
        process.kill()


def test_only_deaths_are_answered_by_a_restart() -> None:
    # Exit code, or minus a signal; whether the first process, and a later one, is started again.
    for code, restarts_first, restarts_later in (
        (70, True, True),
        (-signal.SIGKILL, True, True),
        (-signal.SIGALRM, True, True),
        (-signal.SIGSEGV, True, True),
        (1, False, True),
        (2, False, False),
        (0, False, False),
        (143, False, False),
        (-signal.SIGINT, False, False),
    ):
        reason = main._reason_to_restart(code, is_first=True)
        assert (reason is not None) == restarts_first, code
        reason = main._reason_to_restart(code, is_first=False)
        assert (reason is not None) == restarts_later, code


def test_until_the_new_process_comes_health_and_rollouts_are_answered_503() -> None:
    with running_app(poll=3.0) as app:
        assert httpx.get(f"{app.url}/health/", trust_env=False).status_code == 200
        app.engine.is_dead = True
        health = httpx.get(f"{app.url}/health/", trust_env=False)
        played = httpx.post(f"{app.url}/rollout/", json=rollout_body(), trust_env=False)
    assert health.status_code == 503
    assert health.json()["status"].startswith("engine dead")
    assert played.status_code == 503
    assert "the engine is dead" in played.json()["detail"]


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Settings, Callable[[], None]]]:
    """The server's main coroutine, whose engine starts on request.

    Yields the settings, and what starts the engine.
    """
    go = threading.Event()
    engine = SimpleNamespace(is_dead=False)

    @contextlib.contextmanager
    def rollout_server(*_: Any, **calls: Path) -> Iterator[Any]:
        # Like the real one it blocks the event loop.
        assert go.wait(60)
        app = JSONResponse({"instance_id": "i"})
        yield SimpleNamespace(app=app, health=engine, identity=SimpleNamespace(instance_id="i"))

    monkeypatch.setattr(assembly, "rollout_server", rollout_server)
    monkeypatch.setattr(assembly, "prepare_environment", lambda on_cpu: None)
    # The server takes the end below for its engine's death; the alarm would end the test process
    # later, in some other test.
    monkeypatch.setattr(signal, "alarm", lambda seconds: None)
    listener = main.listen("127.0.0.1", 0)
    settings = Settings(vllm_server_port=listener.getsockname()[1])
    run = main._run(settings, [], listener, "stamp")
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
    for answer in (
        httpx.get(f"{url}/health/", trust_env=False),
        httpx.post(f"{url}/rollout/", content=b"{}"),
    ):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "2"
        assert answer.json()["status"] == "starting"
        assert answer.json()["seconds"] >= 0
    printed: list[str] = []

    def say(text: str) -> None:
        printed.append(text)
        go()

    # No advice to start a server that is starting.
    answer = wait_for_server(settings, say, server_command="never printed", poll=0.01)
    assert answer == {"instance_id": "i"}
    assert [line.rstrip("0123456789 s") for line in printed] == [
        f"the rollout server at {url} is starting,",
        f"the rollout server at {url} is ready.",
    ]
