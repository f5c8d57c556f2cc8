"""Fixtures for every test: the environment is restored, and no process stays behind."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings as hypothesis_settings

from hanabi_grpo.envs import registry

pytest_plugins = ["fault_injection", "conftest_e2e", "file_times"]

ROOT = Path(__file__).parent.parent
_GRACE_SECONDS = 20
"""Time for a process to end after a signal."""
_SHARED_SERVER = re.compile(r"\bserver: Server\b")
"""The parameter by which a file of tests is known to use the server that all tests share."""

# Before torch is imported, and for the trainers that tests start: two test processes with a thread
# for each core would wait for each other's threads most of the time. Engines are started without
# it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On a busy machine an example may take longer than hypothesis' deadline without being at fault.
hypothesis_settings.register_profile("no-deadline", deadline=None)
hypothesis_settings.load_profile("no-deadline")


# A whole environment whose players remember the game, for tests in this process.
registry.OWN["kuhn"] = "toy_kuhn:KUHN"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of the shared server to one process, and those of any other file to one.

    So the shared server is started once. Servers of single tests may run beside it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneSharedServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file_of(nodeid)
            if _needs_shared_server(file):
                return "shared server"
            return file

    # Keep the order of `pytest_collection_modifyitems`.
    config.option.loadscopereorder = False
    return OneSharedServer(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the fault tests, and put long tests first where several processes share the tests."""
    for item in items:
        if item.nodeid.startswith("tests/faults/"):
            item.add_marker("rest")
    # A long test at the end would leave one process working alone.
    is_xdist_worker = hasattr(config, "workerinput")
    if is_xdist_worker:
        items.sort(key=lambda item: _position(_file_of(item.nodeid)))


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _position(file: str) -> int:
    """Return the sort key of a file: those of the shared server first, unit tests last."""
    if _needs_shared_server(file):
        return 0
    if file.startswith("tests/unit/"):
        return 2
    return 1


@cache
def _needs_shared_server(file: str) -> bool:
    return _SHARED_SERVER.search((ROOT / file).read_text()) is not None


@pytest.fixture(autouse=True)
def _restored_environment() -> Iterator[None]:
    """Restore variables and working directory after each test; hide the developer's settings."""
    variables = dict(os.environ)
    folder = Path.cwd()
    for name in variables:
        if name.startswith("HANABI_"):
            del os.environ[name]
    yield
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)


def _heed_ctrl_c() -> None:
    # A test run in the background would hand down an ignored Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start_process() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Give a text-mode `subprocess.Popen` whose process tree is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object, **options: object) -> "subprocess.Popen[str]":
        given = {"text": True, "preexec_fn": _heed_ctrl_c, **options}
        process = subprocess.Popen(*args, **given)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield start
    for process in started:
        end_processes(_family(process.pid))
        process.wait(timeout=_GRACE_SECONDS)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session", autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    """Fail the session, and end the processes, when tests leave processes running."""
    yield
    own = []
    for child in psutil.Process().children(recursive=True):
        if not _ends_with_this_process(child):
            own.append(child)
    # What the last test has ended may still be ending.
    _, left = psutil.wait_procs(own, timeout=5)
    descriptions = []
    for child in left:
        descriptions.append(f"{child.pid} {' '.join(_cmdline(child))[:100]}")
    end_processes(left)
    if descriptions:
        pytest.fail("tests left processes running: " + "; ".join(descriptions))


def end_processes(processes: list[psutil.Process]) -> None:
    """End processes by their pid: SIGTERM, then SIGKILL for those that stay."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_GRACE_SECONDS)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=_GRACE_SECONDS)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _ends_with_this_process(process: psutil.Process) -> bool:
    """Tell multiprocessing's trackers and the hosts of scripted trainers from what is left."""
    command = " ".join(_cmdline(process))
    if not command:
        return True
    names = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "trainer_host.py")
    return any(name in command for name in names)
