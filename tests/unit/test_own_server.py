"""A rollout server of a command of its own, which ends with the command on every way out."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from hanabi_grpo.client.own_server import own_server
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.processes import PARENT_VARIABLE
from hanabi_grpo.settings import Settings

_HEALTHY = """
    import http.server, os, sys
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            names = ("HANABI_PLAYERS", "HANABI_DIE_WITH_PARENT", "HANABI_API_KEY")
            values = tuple(os.environ.get(name) for name in names)
            body = '{"instance_id": "%s/%s/%s"}' % values
            self.wfile.write(body.encode())
        def log_message(self, *args):
            pass
    print("stand-in", os.environ["HANABI_HOST"], flush=True)
    server = http.server.HTTPServer((os.environ["HANABI_HOST"], int(os.environ["PORT"])), Health)
"""
SERVES = _HEALTHY + "    server.serve_forever()\n"
SERVES_WITH_A_CHILD = (
    "    import signal\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + _HEALTHY
    + "    import subprocess\n"
    "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "    print('child', child.pid, flush=True)\n"
    "    server.serve_forever()\n"
)
DIES_AFTER_ONE = _HEALTHY + "    server.handle_request()\n    sys.exit('engine fell over')\n"
DIES = "    import sys\n    print('loading')\n    sys.exit('no model 模型')\n"
HANGS = "    import time\n    time.sleep(600)\n"


Children = Callable[[], list[psutil.Process]]


def command(script: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(script)]


def instance_id(settings: Settings) -> str:
    """What the server of these settings says of itself: the variables that it was started with."""
    with RolloutClient.from_settings(settings) as client:
        return str(client.health()["instance_id"])


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """What this process has started since.

    The server of the end-to-end tests may be running beside.
    """

    def alive() -> list[psutil.Process]:
        descendants = psutil.Process().children(recursive=True)
        return [child for child in descendants if child.status() != psutil.STATUS_ZOMBIE]

    before = set(alive())
    return lambda: [child for child in alive() if child not in before]


def test_two_servers_are_healthy_inside_and_gone_outside_with_ports_and_logs_of_their_own(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    folder = tmp_path / "new"
    keyed = Settings(api_key="secret")
    with (
        own_server(
            keyed,
            said.append,
            command=command(SERVES),
            folder=folder,
            environ={"HANABI_PLAYERS": "3"},
        ) as first,
        own_server(Settings(), said.append, command=command(SERVES), folder=folder) as second,
    ):
        assert instance_id(first) == "3/true/secret"
        assert instance_id(second) == "None/true/None"
        assert first.vllm_server_port != second.vllm_server_port
    for settings in (first, second):
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{settings.vllm_server_port}/health/", trust_env=False)
    logs = {str(log): log.read_text() for log in folder.glob("own-server-*.log")}
    assert list(logs.values()) == ["stand-in 127.0.0.1\n"] * 2
    assert any(log in said[0] for log in logs)
    assert "ready" in said[-1]


def test_a_death_at_the_start_is_noticed_at_once_and_the_log_shown(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ServerError,
            match=r"ended with code 1; the end of .*log:\n    loading\n    no model 模型",
        ),
        own_server(Settings(), lambda text: None, command=command(DIES), folder=tmp_path),
    ):
        pass


def test_a_server_that_never_gets_healthy_is_ended(tmp_path: Path, children: Children) -> None:
    with (
        pytest.raises(
            ServerError, match=r"not ready after 1 s.*HANABI_SERVER_TIMEOUT.*own-server-.*log"
        ),
        own_server(
            Settings(server_timeout=1), lambda text: None, command=command(HANGS), folder=tmp_path
        ),
    ):
        pass
    assert children() == []


def test_a_death_in_the_middle_explains_the_error_that_it_causes(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="engine fell over") as caught,
        own_server(
            Settings(), lambda text: None, command=command(DIES_AFTER_ONE), folder=tmp_path
        ) as settings,
        RolloutClient.from_settings(settings) as client,
    ):
        client.identity()
    assert isinstance(caught.value.__cause__, ServerError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ServerError])
def test_every_way_out_ends_the_server(
    tmp_path: Path, error: type[BaseException], children: Children
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with (
        pytest.raises(error),
        own_server(Settings(), lambda text: None, command=command(SERVES), folder=tmp_path),
    ):
        assert len(children()) == 1
        raise error("out")
    assert children() == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_server_that_ignores_sigterm_is_killed_with_what_it_started(
    tmp_path: Path, children: Children
) -> None:
    running = command(SERVES_WITH_A_CHILD)
    with own_server(Settings(), lambda text: None, command=running, folder=tmp_path, grace=0.5):
        log = next(tmp_path.glob("*.log")).read_text()
        pid = int(log.split("child ")[1])
        assert not is_gone(pid)
    assert children() == []
    end = time.monotonic() + 20
    while not is_gone(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_server_whose_starter_died_before_it_could_ask_for_a_signal_ends_at_once() -> None:
    program = (
        "import signal\n"
        "from hanabi_grpo.processes import die_with_starter\n"
        "die_with_starter(signal.SIGTERM)\n"
    )
    for parent, code in ((str(os.getpid()), 0), ("1", 1)):
        environ = {**os.environ, PARENT_VARIABLE: parent}
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stderr
    assert "process 1, which started this one, has ended" in ended.stderr
