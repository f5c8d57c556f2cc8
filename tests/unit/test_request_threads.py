"""Threads that read requests run their calls in order, and nobody waits for them at the end."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from hanabi_grpo.server.threads import Thread

COMPUTING_SERVER = """
import asyncio
import contextlib
import signal

from hanabi_grpo.server.main import _end
from hanabi_grpo.server.serving import run
from hanabi_grpo.server.threads import Threads


def compute_for_ever():
    print("computing", flush=True)
    while True:
        sum(range(1000))


async def main():
    with contextlib.closing(Threads()) as threads:
        await threads.people.run(compute_for_ever)


signal.signal(signal.SIGTERM, _end)
run(main())
"""


def test_a_server_ends_while_a_call_computes_in_a_thread(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    process = start_process([sys.executable, "-c", COMPUTING_SERVER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "computing\n"
    process.terminate()
    assert process.wait(timeout=60) == 143


def test_calls_run_in_order_and_one_that_is_cancelled_before_its_turn_is_skipped() -> None:
    async def scenario() -> list[str]:
        thread = Thread("a test")
        go = threading.Event()
        done: list[str] = []
        first = asyncio.ensure_future(thread.run(go.wait, timeout=60))
        cancelled = asyncio.ensure_future(thread.run(done.append, "cancelled"))
        second = asyncio.ensure_future(thread.run(done.append, "second"))
        third = asyncio.ensure_future(thread.run(done.append, "third"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        go.set()
        assert await first
        with pytest.raises(ZeroDivisionError):
            await thread.run(divmod, 1, 0)
        await asyncio.gather(second, third)
        thread.close()
        return done

    assert asyncio.run(scenario()) == ["second", "third"]


def test_a_closed_thread_finishes_its_call_skips_those_that_wait_and_takes_no_more() -> None:
    async def scenario() -> list[str]:
        thread = Thread("a test")
        has_begun = threading.Event()
        go = threading.Event()
        done: list[str] = []

        def wait() -> bool:
            has_begun.set()
            return go.wait(60)

        first = asyncio.ensure_future(thread.run(wait))
        waiting = asyncio.ensure_future(thread.run(done.append, "waiting"))
        await asyncio.sleep(0)
        assert has_begun.wait(60)
        thread.close()
        go.set()
        assert await first
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(RuntimeError, match="the thread 'a test' is closed"):
            await thread.run(done.append, "late")
        return done

    assert asyncio.run(scenario()) == []
