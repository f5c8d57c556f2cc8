"""A server whose engine died begins anew in the same process, a bounded number of times."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from conftest import end_processes
from hanabi_grpo.server.restart import COUNT_VARIABLE, EXIT_CODE, Restarts, stop_within
from server_app import rollout_body, running_app

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "dying_server.py"
PATIENCE = 60.0


class Dying:
    """The server process, and the images that it has gone through."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, folder: Path) -> None:
        self.process, self.folder, self.url = process, folder, f"http://127.0.0.1:{port}"

    def images(self) -> list[dict[str, Any]]:
        file = self.folder / "images"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for_image(self, number: int) -> dict[str, Any]:
        """Wait until image `number`, from 1, answers."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            images = self.images()
            if len(images) >= number:
                try:
                    answer = httpx.get(f"{self.url}/identity/", trust_env=False).json()
                    if answer["instance_id"] == images[number - 1]["instance"]:
                        return images[number - 1]
                except httpx.TransportError:
                    pass
            time.sleep(0.05)
        raise AssertionError(f"image {number} did not come; exit code {self.process.poll()}")

    def kill_engine(self) -> None:
        (self.folder / "die").touch()


@pytest.fixture
def dying(start_process: Callable[..., "subprocess.Popen[str]"], tmp_path: Path) -> Callable[..., Dying]:
    def start(command: list[str], **environment: str) -> Dying:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), **environment}
        process = start_process(
            [*command, str(port), str(tmp_path)], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return Dying(process, port, tmp_path)

    return start


def test_pid_port_and_arguments_stay_and_the_instance_is_new(dying: Callable[..., Dying]) -> None:
    server = dying([sys.executable, str(SCRIPT)], ALLOWED="2")
    first = server.wait_for_image(1)
    server.kill_engine()
    second = server.wait_for_image(2)
    assert second["pid"] == first["pid"] == server.process.pid
    assert second["arguments"] == first["arguments"]
    assert second["instance"] != first["instance"]
    assert (first["count"], second["count"]) == (None, "1")
    assert not second["library"], "what a library set in the old image must not reach the new one"
    assert not psutil.pid_exists(first["child"]) or psutil.Process(first["child"]).status() == "zombie"
    assert second["deathsig"] == first["deathsig"] == signal.SIGTERM
    assert second["blocked"] == first["blocked"] == []
    assert second["files"] <= first["files"], "files of the old image are still open"


@pytest.mark.parametrize("core", ["hangs", "dead"])
def test_the_workers_of_an_engine_core_are_gone_before_the_new_image_starts(
    dying: Callable[..., Dying], core: str
) -> None:
    server = dying([sys.executable, str(SCRIPT)], CORE=core)
    first = server.wait_for_image(1)
    assert all(psutil.pid_exists(pid) for pid in first["workers"])
    server.kill_engine()
    second = server.wait_for_image(2)
    assert second["left"] == []
    # The second image's own, which nothing ties to it.
    end_processes([psutil.Process(pid) for pid in second["workers"]])


def test_after_the_last_restart_the_server_ends_with_code_70_and_says_why(dying: Callable[..., Dying]) -> None:
    server = dying([sys.executable, str(SCRIPT)], ALLOWED="1")
    for number in (1, 2):
        server.wait_for_image(number)
        server.kill_engine()
    output, _ = server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode == EXIT_CODE == 70
    assert "the server starts again (1 of 1)" in output
    assert "HANABI_ENGINE_RESTARTS=1 is used up: the server ends (exit code 70)" in output
    assert len(server.images()) == 2


@pytest.mark.parametrize("way", ["module", "console script"])
def test_every_way_of_starting_leads_to_a_restart(dying: Callable[..., Dying], tmp_path: Path, way: str) -> None:
    if way == "module":
        command = [sys.executable, "-m", "dying_server"]
    else:
        script = tmp_path / "hanabi-test"
        script.write_text(f"#!{sys.executable}\nimport sys\nfrom dying_server import main\nsys.exit(main())\n")
        script.chmod(0o755)
        command = [str(script)]
    server = dying(command)
    first = server.wait_for_image(1)
    server.kill_engine()
    assert server.wait_for_image(2)["pid"] == first["pid"]


def test_a_clean_up_that_hangs_does_not_hold_the_restart_up(dying: Callable[..., Dying]) -> None:
    server = dying([sys.executable, str(SCRIPT)], HANG="1", AT_LATEST="1")
    first = server.wait_for_image(1)
    server.kill_engine()
    second = server.wait_for_image(2)
    assert second["pid"] == first["pid"]
    assert second["deathsig"] == signal.SIGTERM


def test_a_clean_up_that_hangs_does_not_hold_the_end_up_either(dying: Callable[..., Dying]) -> None:
    server = dying([sys.executable, str(SCRIPT)], HANG="1", AT_LATEST="1", ALLOWED="0")
    server.wait_for_image(1)
    server.kill_engine()
    server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode == 70


def test_sigterm_ends_a_restarted_server_at_once(dying: Callable[..., Dying]) -> None:
    server = dying([sys.executable, str(SCRIPT)])
    server.wait_for_image(1)
    server.kill_engine()
    server.wait_for_image(2)
    server.process.send_signal(signal.SIGTERM)
    server.process.communicate(timeout=PATIENCE)
    assert server.process.returncode in (143, -signal.SIGTERM)
    assert len(server.images()) == 2


def used(count: str | None, *, allowed: int, healthy: float) -> Restarts:
    environment = {} if count is None else {COUNT_VARIABLE: count}
    return Restarts(allowed=allowed, started=time.monotonic() - healthy, environment=environment, command=("/nowhere",))


@pytest.mark.parametrize(
    ("count", "allowed", "healthy", "starts_again"),
    [
        (None, 0, 1.0, False),
        (None, 1, 1.0, True),
        ("1", 1, 1.0, False),
        ("1", 1, 601.0, True),
        ("3", 3, 599.0, False),
        ("2", 3, 1.0, True),
        ("nonsense", 1, 1.0, True),
        (None, 0, 601.0, False),
    ],
)
def test_restarts_are_counted_until_ten_healthy_minutes_have_passed(
    monkeypatch: pytest.MonkeyPatch, count: str | None, allowed: int, healthy: float, starts_again: bool
) -> None:
    executed: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: executed.append(given))
    restarts = used(count, allowed=allowed, healthy=healthy)
    if starts_again:
        restarts.after_engine_death()
        assert len(executed) == 1
    else:
        with pytest.raises(SystemExit) as caught:
            restarts.after_engine_death()
        assert (caught.value.code, executed) == (70, [])


def test_a_program_that_cannot_be_started_again_ends_with_the_code() -> None:
    with pytest.raises(SystemExit) as caught:
        used(None, allowed=1, healthy=1.0).after_engine_death()
    assert caught.value.code == 70


def test_stopping_what_hangs_or_fails_does_not_hold_anything_up() -> None:
    start = time.monotonic()
    stop_within(lambda: time.sleep(30), 0.2)
    stop_within(lambda: 1 / 0, 5)  # type: ignore[arg-type, return-value]
    assert time.monotonic() - start < 5


def test_until_the_new_image_comes_health_and_rollouts_are_answered_503() -> None:
    with running_app(poll=3.0) as app:
        assert httpx.get(f"{app.url}/health/", trust_env=False).status_code == 200
        app.engine.is_dead = True
        health = httpx.get(f"{app.url}/health/", trust_env=False)
        played = httpx.post(f"{app.url}/rollout/", json=rollout_body(), trust_env=False)
    assert health.status_code == 503
    assert health.json()["status"].startswith("engine dead")
    assert played.status_code == 503
    assert "the engine is dead" in played.json()["detail"]
    assert app.died == [True]
