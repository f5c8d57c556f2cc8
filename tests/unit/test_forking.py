"""Worker processes are forked from one that has imported what they need."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hanabi_grpo.server.workers.current_call import create_memory
from hanabi_grpo.server.workers.forking import Child, ForkServer
from hanabi_grpo.server.workers.messages import Ready, read_from_worker


def run(scenario: Callable[[ForkServer], Awaitable[Any]]) -> Any:
    """Run a scenario with a fork server, and check that nothing of it is left behind."""

    async def with_server() -> Any:
        server = await ForkServer.start()
        try:
            return await scenario(server)
        finally:
            server.close()
            await server.process.wait()

    result = asyncio.run(asyncio.wait_for(with_server(), 60))
    own = psutil.Process().children(recursive=True)
    assert [child for child in own if "workers.fork_server" in " ".join(child.cmdline())] == []
    return result


async def start_worker(server: ForkServer) -> tuple[Child, asyncio.StreamReader, Any]:
    """Return a worker that has started, and the connection to it."""
    ours, theirs = socket.socketpair()
    with theirs, create_memory() as memory:
        child = await server.fork(theirs, memory)
    reader, writer = await asyncio.open_connection(sock=ours)
    assert isinstance(await read_from_worker(reader), Ready)
    return child, reader, writer


def test_a_worker_ends_with_its_connection_and_its_exit_code_is_reported() -> None:
    async def scenario(server: ForkServer) -> int:
        child, _, writer = await start_worker(server)
        writer.close()
        return await child.wait()

    assert run(scenario) == 0


def test_a_killed_worker_is_reported_and_killing_it_again_does_nothing() -> None:
    async def scenario(server: ForkServer) -> tuple[int, bytes]:
        child, reader, _ = await start_worker(server)
        child.kill()
        code = await child.wait()
        child.kill()
        return code, await reader.read()

    assert run(scenario) == (-signal.SIGKILL, b"")


def test_workers_have_one_thread_each_and_the_modules_of_the_fork_server() -> None:
    async def scenario(server: ForkServer) -> list[int]:
        pids = [server.process.pid]
        for _ in range(2):
            child, _, _ = await start_worker(server)
            pids.append(child.pid)
        return [len(os.listdir(f"/proc/{pid}/task")) for pid in pids]

    assert run(scenario) == [1, 1, 1]


def test_all_workers_end_with_the_fork_server_and_it_forks_no_more() -> None:
    async def scenario(server: ForkServer) -> None:
        child, reader, _ = await start_worker(server)
        os.kill(server.process.pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        # The kernel has killed it too, and with it its end of the connection.
        assert await reader.read() == b""
        with pytest.raises(ConnectionError, match="the fork server has ended"):
            await start_worker(server)

    run(scenario)


def test_the_fork_server_ends_quietly_where_its_last_messages_were_not_read(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def scenario(server: ForkServer) -> int:
        children = [(await start_worker(server))[0] for _ in range(2)]
        processes = [psutil.Process(child.pid) for child in children]
        for child in children:
            child.kill()
        # The event loop stands still, so that nobody reads of their ends.
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []
        server.close()
        return await server.process.wait()

    assert run(scenario) == 0
    assert capfd.readouterr().err == ""


def test_a_request_is_answered_when_the_fork_server_ends_before_it_forks() -> None:
    async def scenario(server: ForkServer) -> None:
        os.kill(server.process.pid, signal.SIGSTOP)
        ours, theirs = socket.socketpair()
        with ours, theirs, create_memory() as memory:
            request = asyncio.ensure_future(server.fork(theirs, memory))
            await asyncio.sleep(0)
            os.kill(server.process.pid, signal.SIGKILL)
            with pytest.raises(ConnectionError, match="the fork server has ended"):
                await request

    run(scenario)


def test_each_worker_has_random_numbers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that the workers import when they are forked writes down their first numbers."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, random\n"
        "def note():\n"
        "    import numpy\n"
        "    import hanabi_grpo.server.workers.process as process\n"
        "    run = process.run\n"
        "    def noting_run(*received):\n"
        f"        path = {str(folder)!r} + f'/{{os.getpid()}}'\n"
        "        with open(path, 'w') as file:\n"
        "            file.write(f'{random.random()} {numpy.random.random()}')\n"
        "        run(*received)\n"
        "    process.run = noting_run\n"
        "import sys\n"
        "if 'hanabi_grpo.server.workers.fork_server' in sys.orig_argv:\n"
        "    note()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def scenario(server: ForkServer) -> list[str]:
        for _ in range(3):
            await start_worker(server)
        return [path.read_text() for path in folder.iterdir()]

    lines = run(scenario)
    assert len(lines) == 3
    for column in range(2):
        assert len({line.split()[column] for line in lines}) == 3
