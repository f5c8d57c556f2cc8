"""What is ours in vLLM's CPU build against the stock methods: LoRA rows, waiting without spinning, a finite cache."""

import inspect
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import zmq
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition
from vllm.lora.layers import LoRAMapping
from vllm.lora.model_manager import LoRAModelManager, LRUCacheLoRAModelManager
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from hanabi_grpo.server import vllm_cpu


def _wrapper(indices: list[int]) -> PunicaWrapperCPU:
    """vLLM's, brought to a batch as its own code does; a row's adapter is the one in slot `index`, if that is not -1."""
    wrapper = PunicaWrapperCPU(max(len(indices), 1), max(len(indices), 1), "cpu")
    rows = tuple(index + 1 for index in indices)
    ids = list(range(1, max(rows, default=0) + 1))
    mapping = LoRAMapping(index_mapping=rows, prompt_mapping=rows, is_prefill=False)
    vllm_cpu.update_metadata(wrapper, mapping, ids, len(ids) + 1, 1000)
    return wrapper


def _case(dtype: torch.dtype = torch.float32, slots: int = 3, tokens: int = 37, rank: int = 8) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    slices = (24, 16, 16)
    return {
        "y": normal(tokens, sum(slices)),
        "x": normal(tokens, 32),
        "lora_a_stacked": tuple(normal(slots, 1, rank, 32) for _ in slices),
        "lora_b_stacked": tuple(normal(slots, 1, width, rank) for width in slices),
        "scale": 1.0,
        "output_slices": slices,
    }


def _added(case: dict[str, object], indices: list[int], method: object = vllm_cpu.add_lora_linear) -> torch.Tensor:
    y = case["y"].clone()
    method(_wrapper(indices), **{**case, "y": y})
    return y


@pytest.mark.parametrize("indices", [[0] * 37, [0, 1, 2] * 12 + [1], [2] * 20 + [0] * 17])
def test_it_equals_the_stock_op_in_float32(indices: list[int]) -> None:
    case = _case()
    ours, stock = _added(case, indices), _added(case, indices, vllm_cpu.stock_add_lora_linear)
    assert (ours - case["y"]).abs().max() > 1.0
    torch.testing.assert_close(ours, stock, atol=1e-4, rtol=1e-5)


def test_rows_without_an_adapter_stay_as_they_are_and_no_rows_are_no_error() -> None:
    case = _case()
    result = _added(case, [-1, 0] * 18 + [-1])
    assert torch.equal(result[0::2], case["y"][0::2])
    assert not torch.equal(result[1::2], case["y"][1::2])
    assert len(_added(_case(tokens=0), [])) == 0


def test_an_adapter_that_no_row_uses_reaches_no_row_whatever_it_holds() -> None:
    for used in ([0, 2] * 18 + [0], [2] * 37, [-1, 2] * 18 + [0]):
        case = _case(slots=4)
        before = _added(case, used)
        for unused in {0, 1, 2, 3} - set(used):
            for weight in (*case["lora_a_stacked"], *case["lora_b_stacked"]):
                weight[unused] = torch.inf
        assert torch.equal(_added(case, used), before), used


def test_an_adapter_moves_no_row_of_another_one() -> None:
    """Not by a bit, however large its product is."""
    case, indices = _case(), [0, 2] * 18 + [0]
    before = _added(case, indices)
    for name, factor in (("lora_a_stacked", torch.inf), ("lora_b_stacked", 1e30)):
        for weight in case[name]:
            weight[0] *= factor
    after = _added(case, indices)
    assert torch.equal(after[1::2], before[1::2])
    assert not torch.equal(after[0::2], before[0::2])


def test_bfloat16_keeps_the_largest_output_of_almost_every_row() -> None:
    case, indices = _case(torch.bfloat16, tokens=200), [row % 3 for row in range(200)]
    ours, stock = _added(case, indices), _added(case, indices, vllm_cpu.stock_add_lora_linear)
    assert (stock.argmax(1) == ours.argmax(1)).float().mean() > 0.97


def test_a_slot_that_gets_another_adapter_is_joined_anew() -> None:
    case, wrapper = _case(), _wrapper([0] * 37)

    def added() -> torch.Tensor:
        y = case["y"].clone()
        vllm_cpu.add_lora_linear(wrapper, **{**case, "y": y})
        return y

    class Layer:
        def set_lora(self, index: int, *weights: object) -> None:
            case["lora_b_stacked"][0][index] *= 2

    manager = LRUCacheLoRAModelManager.__new__(LRUCacheLoRAModelManager)
    manager.modules, manager.lora_index_to_id, manager._active_adapters = {"layer": Layer()}, [None], {}
    manager._registered_adapters = {7: SimpleNamespace(id=7)}
    manager._get_lora_layer_weights = lambda model, name: SimpleNamespace(lora_a=None, lora_b=None)
    manager.punica_wrapper_mapping = {"language": wrapper}
    first = added()
    assert torch.equal(added(), first)
    assert vllm_cpu.activate_adapter(manager, 7)
    second = added()
    assert not torch.equal(second, first)
    assert not vllm_cpu.activate_adapter(manager, 7), "it is in its slot already"
    assert torch.equal(second, _added(case, [0] * 37))


def test_joined_weights_of_few_sets_of_slots_are_kept() -> None:
    case, wrapper = _case(slots=12, tokens=1), _wrapper([11])
    for slot in range(12):
        mapping = LoRAMapping(index_mapping=(slot + 1,), prompt_mapping=(slot + 1,), is_prefill=False)
        vllm_cpu.update_metadata(wrapper, mapping, list(range(1, 13)), 13, 1000)
        y = case["y"].clone()
        vllm_cpu.add_lora_linear(wrapper, **{**case, "y": y})
        torch.testing.assert_close(y, _added(case, [slot], vllm_cpu.stock_add_lora_linear), atol=1e-4, rtol=1e-5)
    assert list(wrapper.joined) == [(slot,) for slot in range(4, 12)]


def test_the_stock_methods_still_are_what_is_replaced() -> None:
    expected = ["self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices", "buffer", "kwargs"]
    assert list(inspect.signature(vllm_cpu.stock_add_lora_linear).parameters) == expected
    # A slot's weights change when an adapter is activated, and in no other way.
    manager = inspect.getsource(LoRAModelManager)
    assert manager.count(".set_lora(") == inspect.getsource(vllm_cpu.stock_activate_adapter).count(".set_lora(") == 1
    assert "super().activate_adapter(" in inspect.getsource(LRUCacheLoRAModelManager.activate_adapter)


def test_only_finite_keys_and_values_reach_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[torch.Tensor] = []
    stock = vllm_cpu._stock_update
    monkeypatch.setattr(vllm_cpu, "_stock_update", lambda self, layer, key, value, *_: cached.extend((key, value)))
    odd = torch.tensor([[1.5, torch.nan], [torch.inf, -torch.inf]])
    vllm_cpu._update(None, None, odd, torch.ones(2, 2), None, None)
    assert cached[0].tolist() == [[1.5, 0.0], [0.0, 0.0]] and cached[1].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert inspect.signature(stock).parameters.keys() == inspect.signature(vllm_cpu._update).parameters.keys()


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a name so short that a socket's name has room behind it, for readers that wait as ours do."""
    monkeypatch.setattr(SpinCondition, "wait", vllm_cpu.wait)
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


@pytest.mark.parametrize("is_ours", [False, True])
def test_after_a_read_the_stock_reader_spins_and_ours_waits(
    is_ours: bool, pair: tuple[SpinCondition, SpinCondition], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, reader = pair
    spins: list[None] = []
    monkeypatch.setattr(SpinCondition, "wait", vllm_cpu.wait if is_ours else vllm_cpu.stock_wait)
    monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: spins.append(None))
    reader.busy_loop_s = 60
    last, start = reader.last_read, time.monotonic()
    for _ in range(20):
        reader.wait(timeout_ms=60_000)
    assert time.monotonic() - start < 30
    assert len(spins) == (0 if is_ours else 20)
    assert reader.last_read == last
    # Long after a read both wait as long as they are told.
    reader.last_read -= reader.busy_loop_s
    start = time.monotonic()
    reader.wait(timeout_ms=300)
    assert time.monotonic() - start > 0.25


@pytest.mark.parametrize("is_recent", [True, False])
def test_a_notification_or_the_end_wakes_it(pair: tuple[SpinCondition, SpinCondition], is_recent: bool) -> None:
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
    sockets: Path, monkeypatch: pytest.MonkeyPatch
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
    assert str(inspect.signature(vllm_cpu.stock_wait)) == "(self, timeout_ms: int | None = None) -> None"
    assert "if current_time <= self.last_read + self.busy_loop_s:" in inspect.getsource(vllm_cpu.stock_wait)
    assert "self._spin_condition.wait(timeout_ms=" in inspect.getsource(shm_broadcast.MessageQueue.acquire_read)
    writes = inspect.getsource(shm_broadcast.MessageQueue.enqueue)
    assert writes.rindex("self._spin_condition.notify()") > writes.rindex("self.acquire_write(")
