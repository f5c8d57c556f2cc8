"""vLLM's processes wait for each other without spinning, and are woken as before."""

import inspect
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition

from hanabi_grpo.server import idle_cpu


@pytest.fixture(params=["stock", "ours"])
def is_ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(SpinCondition, "wait", idle_cpu.stock_wait)
    if request.param == "ours":
        idle_cpu.install()
    return bool(request.param == "ours")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a name so short that a socket's name has room behind it."""
    with tempfile.TemporaryDirectory(prefix="hanabi-") as folder:
        yield Path(folder)


@pytest.fixture
def pair(sockets: Path) -> Iterator[tuple[SpinCondition, SpinCondition]]:
    """A writer and a reader that has just read something."""
    context, address = zmq.Context(), f"ipc://{sockets}/notify"
    writer = SpinCondition(is_reader=False, context=context, notify_address=address)
    reader = SpinCondition(is_reader=True, context=context, notify_address=address)
    # A subscription takes a moment; what was sent before it is lost.
    deadline = time.monotonic() + 20
    while not reader.poller.poll(timeout=50) and time.monotonic() < deadline:
        writer.notify()
    reader.local_notify_socket.recv()
    reader.record_read()
    yield writer, reader
    context.destroy(linger=0)


def test_after_a_read_the_stock_reader_spins_and_ours_waits(
    is_ours: bool, pair: tuple[SpinCondition, SpinCondition], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reader = pair
    spins: list[None] = []
    monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: spins.append(None))
    reader.busy_loop_s = 60
    last = reader.last_read
    start = time.monotonic()
    for _ in range(20):
        reader.wait(timeout_ms=60_000)
    assert time.monotonic() - start < 30
    assert len(spins) == (0 if is_ours else 20)
    assert reader.last_read == last


def test_long_after_a_read_both_wait_as_long_as_they_are_told(
    is_ours: bool, pair: tuple[SpinCondition, SpinCondition]
) -> None:
    _, reader = pair
    reader.last_read -= reader.busy_loop_s
    start = time.monotonic()
    reader.wait(timeout_ms=300)
    assert time.monotonic() - start > 0.25


@pytest.mark.parametrize("is_recent", [True, False])
def test_a_notification_or_the_end_wakes_it(
    is_ours: bool, pair: tuple[SpinCondition, SpinCondition], is_recent: bool
) -> None:
    writer, reader = pair
    for wake in (writer.notify, reader.cancel):
        reader.busy_loop_s = 60 if is_recent else 0
        timer = threading.Timer(0.2, wake)
        timer.start()
        start = time.monotonic()
        reader.wait(timeout_ms=60_000)
        assert time.monotonic() - start < 30
        timer.join()


def test_messages_arrive_in_order_and_soon_whatever_comes_between(
    is_ours: bool, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", str(sockets))
    queue = MessageQueue(n_reader=1, n_local_reader=1, max_chunks=3)
    found: list[object] = []
    delays: list[float] = []
    handle = queue.export_handle()

    def read() -> None:
        reader = MessageQueue.create_from_handle(handle, 0)
        reader.wait_until_ready()
        for _ in range(300):
            number, sent = reader.dequeue(timeout=60)
            found.append(number)
            delays.append(time.monotonic() - sent)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    queue.wait_until_ready()
    for number in range(300):
        # In bursts, at once, and so soon that a notification is lost.
        time.sleep((0, 0, 0.0005, 0.02)[number // 10 % 4])
        queue.enqueue((number, time.monotonic()), timeout=60)
    thread.join(60)
    assert found == list(range(300))
    # Nobody slept until vLLM's own look after a lost notification.
    assert max(delays) < shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS / 1000 / 2


def test_vllm_waits_in_the_way_that_is_changed() -> None:
    assert inspect.signature(SpinCondition).parameters["busy_loop_s"].default == 1, "it may not spin any more"
    assert str(inspect.signature(idle_cpu.stock_wait)) == "(self, timeout_ms: int | None = None) -> None"
    assert "if current_time <= self.last_read + self.busy_loop_s:" in inspect.getsource(idle_cpu.stock_wait)
    assert "self._spin_condition.wait(timeout_ms=" in inspect.getsource(shm_broadcast.MessageQueue.acquire_read)
    writes = inspect.getsource(shm_broadcast.MessageQueue.enqueue)
    assert writes.rindex("self._spin_condition.notify()") > writes.rindex("self.acquire_write(")
