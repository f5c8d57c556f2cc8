"""What is ours in vLLM's CPU build against the stock methods.

LoRA rows, a finite cache, the seeds of requests, and sums that do not depend on the batch.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import (
    AdapterLRUCache,
    LoRAModelManager,
    LRUCacheLoRAModelManager,
)
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from hanabi_grpo.envs.base import draw
from hanabi_grpo.server import vllm_cpu
from hanabi_grpo.server.vllm_cpu import SeedStream, draw_seeds

NO_ADAPTER = -1
HIDDEN = 32
SLICES = (24, 16, 16)
"""Widths of the slices of the layer's output."""
VOCAB_SIZE = 1000


def set_batch(wrapper: PunicaWrapperCPU, row_slots: Sequence[int], num_slots: int) -> None:
    """Bring a wrapper to a batch, as vLLM does before a forward pass.

    Args:
        wrapper: The wrapper.
        row_slots: The slot of each row's adapter; `NO_ADAPTER` for a row without one.
        num_slots: Number of slots that hold an adapter.
    """
    # vLLM's ids of adapters begin at 1, and 0 is no adapter.
    row_ids = tuple(slot + 1 for slot in row_slots)
    mapping = LoRAMapping(index_mapping=row_ids, prompt_mapping=row_ids, is_prefill=False)
    slot_ids = list(range(1, num_slots + 1))
    vllm_cpu.update_metadata(wrapper, mapping, slot_ids, num_slots + 1, VOCAB_SIZE)


def make_wrapper(row_slots: Sequence[int]) -> PunicaWrapperCPU:
    """Return vLLM's wrapper for a batch with these slots in its rows."""
    num_rows = max(len(row_slots), 1)
    wrapper = PunicaWrapperCPU(num_rows, num_rows, "cpu")
    set_batch(wrapper, row_slots, num_slots=max(row_slots, default=NO_ADAPTER) + 1)
    return wrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One linear layer of a batch: its input and output, and the adapters in its slots."""

    y: torch.Tensor
    """[tokens, sum(SLICES)], the output before LoRA."""
    x: torch.Tensor
    """[tokens, HIDDEN]."""
    lora_a: tuple[torch.Tensor, ...]
    """Of each slice [slots, 1, rank, HIDDEN]."""
    lora_b: tuple[torch.Tensor, ...]
    """Of each slice [slots, 1, width of the slice, rank]."""

    def output(
        self, wrapper: PunicaWrapperCPU, method: Callable[..., None] = vllm_cpu.add_lora_linear
    ) -> torch.Tensor:
        """Return the output with each row's LoRA product, by our method or by another one."""
        y = self.y.clone()
        method(
            wrapper,
            y=y,
            x=self.x,
            lora_a_stacked=self.lora_a,
            lora_b_stacked=self.lora_b,
            scale=1.0,
            output_slices=SLICES,
        )
        return y


def make_layer(
    *, tokens: int = 37, slots: int = 3, dtype: torch.dtype = torch.float32, rank: int = 8
) -> Layer:
    """Return a layer of random numbers.

    Args:
        tokens: Number of rows.
        slots: Number of adapters.
        dtype: Of all tensors.
        rank: Of every adapter.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return Layer(
        y=normal(tokens, sum(SLICES)),
        x=normal(tokens, HIDDEN),
        lora_a=tuple(normal(slots, 1, rank, HIDDEN) for _ in SLICES),
        lora_b=tuple(normal(slots, 1, width, rank) for width in SLICES),
    )


def our_output(layer: Layer, row_slots: Sequence[int]) -> torch.Tensor:
    return layer.output(make_wrapper(row_slots))


def stock_output(layer: Layer, row_slots: Sequence[int]) -> torch.Tensor:
    return layer.output(make_wrapper(row_slots), vllm_cpu.stock_add_lora_linear)


@pytest.mark.parametrize(
    "row_slots",
    [
        [0] * 37,
        [0, 1, 2] * 12 + [1],
        [2] * 20 + [0] * 17,
        [0, 2] * 50,
    ],
    ids=["one", "three-mixed", "two-blocks", "many-rows"],
)
def test_it_equals_the_stock_op_in_float32(row_slots: list[int]) -> None:
    layer = make_layer(tokens=len(row_slots))
    ours = our_output(layer, row_slots)
    assert (ours - layer.y).abs().max() > 1.0
    torch.testing.assert_close(ours, stock_output(layer, row_slots), atol=1e-4, rtol=1e-5)


def test_rows_without_an_adapter_stay_as_they_are() -> None:
    layer = make_layer(tokens=37)
    output = our_output(layer, [NO_ADAPTER, 0] * 18 + [NO_ADAPTER])
    assert torch.equal(output[0::2], layer.y[0::2])
    assert not torch.equal(output[1::2], layer.y[1::2])


def test_a_batch_without_rows_is_no_error() -> None:
    assert len(our_output(make_layer(tokens=0), [])) == 0


@pytest.mark.parametrize("rank", [8, 16, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_product_is_the_same_bits_whatever_else_is_in_the_batch(
    rank: int, dtype: torch.dtype
) -> None:
    layer = make_layer(tokens=150, slots=4, rank=rank, dtype=dtype)
    row_slots = [row % 4 for row in range(150)]
    expected = our_output(layer, row_slots)
    batches: list[Sequence[int]] = []
    # Every number of rows has a kernel of its own somewhere: one, two, three, odd, above 64.
    for size in (1, 2, 3, 4, 7, 15, 16, 17, 33, 63, 64, 65, 149):
        batches.append(range(size))
        batches.append(range(150 - size, 150))
    # Rows of one adapter alone, and of two that are not neighbours.
    for slots in ((0,), (3,), (1, 3)):
        rows = [row for row in range(150) if row % 4 in slots]
        batches += [rows, rows[:1], rows[-3:]]
    for batch in batches:
        rows = list(batch)
        part = Layer(
            y=layer.y[rows],
            x=layer.x[rows],
            lora_a=layer.lora_a,
            lora_b=layer.lora_b,
        )
        output = our_output(part, [row_slots[row] for row in rows])
        assert torch.equal(output, expected[rows]), f"{len(rows)} rows from {rows[0]}"


@pytest.mark.parametrize("width", [64, 2048])
def test_a_row_of_a_layer_is_the_same_bits_alone_and_beside_others(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(width, width, generator=generator)
    x = torch.randn(130, width, generator=generator)
    handler = vllm_cpu._custom_ops.create_onednn_mm(weight, 32)
    expected = vllm_cpu.matmul(handler, x, None)
    torch.testing.assert_close(expected, x @ weight, atol=1e-2, rtol=1e-3)
    for size in (1, 2, 3, 5, 16, 17, 64, 65, 129):
        assert torch.equal(vllm_cpu.matmul(handler, x[-size:], None), expected[-size:]), size
    bias = torch.randn(width, generator=generator)
    alone = vllm_cpu.matmul(handler, x[3], bias)
    assert torch.equal(alone, vllm_cpu.matmul(handler, x, bias)[3])


def drawn(*streams: SeedStream) -> list[int]:
    return [int(number) for number in draw_seeds(streams)]


def test_the_numbers_of_a_seed_are_the_same_for_ever() -> None:
    stream = SeedStream(7)
    assert [drawn(stream) for _ in range(3)] == [[1549427019], [334779968], [1877680808]]
    assert drawn(SeedStream(8), SeedStream(2**63 - 1)) == [572617235, 887418053]


def test_vllm_takes_a_draw_back_by_an_offset_which_torchs_generator_does_not_have() -> None:
    with pytest.raises(RuntimeError):
        torch.Generator("cpu").get_offset()
    stream = SeedStream(7)
    first = drawn(stream)
    # As `GPUModelRunner` does behind a step that read only a part of a prompt.
    stream.set_offset(stream.get_offset() - 4)
    assert drawn(stream) == first
    assert drawn(stream) != first


def make_vllm_sampler() -> TopKTopPSampler:
    return TopKTopPSampler(logprobs_mode="processed_logprobs")


def test_a_tokens_choice_depends_on_the_seed_and_not_on_the_row() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 52, generator=generator).expand(40, -1)
    sampler = make_vllm_sampler()
    streams = {row: SeedStream(row // 2) for row in range(20)}
    tokens, logprobs = vllm_cpu.sample(sampler, logits.clone(), streams, None, None)
    again = {39 - row: SeedStream(row // 2) for row in range(20)}
    reversed_tokens, _ = vllm_cpu.sample(sampler, logits.clone(), again, None, None)
    chosen = tokens.tolist()
    assert chosen[:20] == reversed_tokens.flip(0).tolist()[:20]
    assert chosen[0:20:2] == chosen[1:20:2], "two rows have each seed"
    assert len(set(chosen[0:20:2])) > 3
    assert logprobs is not None
    assert torch.equal(logprobs, logits.log_softmax(-1))


def test_seeded_tokens_have_the_frequencies_of_their_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = 20_000
    # As the seeds of replies are: digests, far apart; and neighbours.
    for seeds in (range(rows), [draw("seed", row, below=2**63) for row in range(rows)]):
        streams = {row: SeedStream(seed) for row, seed in enumerate(seeds)}
        logits = probabilities.log().expand(rows, -1).clone()
        first, _ = vllm_cpu.sample(make_vllm_sampler(), logits, streams, None, None)
        second, _ = vllm_cpu.sample(make_vllm_sampler(), logits, streams, None, None)
        for tokens in (first, second):
            shares = torch.bincount(tokens, minlength=4) / rows
            # Four standard errors of the largest share.
            assert (shares - probabilities).abs().max() < 4 * (0.25 / rows) ** 0.5
        pairs = torch.bincount(first * 4 + second, minlength=16) / rows
        expected = (probabilities[:, None] * probabilities).flatten()
        assert (pairs - expected).abs().max() < 4 * (0.25 / rows) ** 0.5, "one after the other"


def test_a_request_keeps_its_stream_where_it_leaves_the_batch_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added = []

    def stock(batch: object, request: SimpleNamespace) -> int:
        added.append(request.generator)
        return 0

    monkeypatch.setattr(vllm_cpu, "stock_add_request", stock)
    request = SimpleNamespace(generator=torch.Generator().manual_seed(7))
    vllm_cpu.add_request(SimpleNamespace(), request)
    assert drawn(added[0]) == [1549427019], "the first number of seed 7"
    vllm_cpu.add_request(SimpleNamespace(), request)
    assert added[0] is added[1]
    without_seed = SimpleNamespace(generator=None)
    vllm_cpu.add_request(SimpleNamespace(), without_seed)
    assert added[2] is None


@pytest.mark.parametrize(
    ("row_slots", "unused"),
    [
        ([0, 2] * 18 + [0], (1, 3)),
        ([2] * 37, (0, 1, 3)),
        ([NO_ADAPTER, 2] * 18 + [0], (1, 3)),
    ],
    ids=["two-used", "one-used", "rows-without-adapter"],
)
def test_an_adapter_that_no_row_uses_reaches_no_row_whatever_it_holds(
    row_slots: list[int], unused: tuple[int, ...]
) -> None:
    layer = make_layer(slots=4)
    before = our_output(layer, row_slots)
    for slot in unused:
        for weight in (*layer.lora_a, *layer.lora_b):
            weight[slot] = torch.inf
    assert torch.equal(our_output(layer, row_slots), before)


def test_an_adapter_changes_no_row_of_another_one() -> None:
    """Not by a bit, however large its product is."""
    layer = make_layer()
    row_slots = [0, 2] * 18 + [0]
    before = our_output(layer, row_slots)
    for weight in layer.lora_a:
        weight[0] *= torch.inf
    for weight in layer.lora_b:
        weight[0] *= 1e30
    after = our_output(layer, row_slots)
    assert torch.equal(after[1::2], before[1::2])
    assert not torch.equal(after[0::2], before[0::2])


def test_bfloat16_keeps_the_largest_output_of_almost_every_row() -> None:
    layer = make_layer(dtype=torch.bfloat16, tokens=200)
    row_slots = [row % 3 for row in range(200)]
    ours = our_output(layer, row_slots)
    stock = stock_output(layer, row_slots)
    assert (stock.argmax(1) == ours.argmax(1)).float().mean() > 0.97


def test_processors_without_products_of_16_bit_numbers_compute_them_in_32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = vllm_cpu._custom_ops.create_onednn_mm

    def without_16_bits(weight: torch.Tensor, num_shapes: int) -> object:
        if weight.dtype != torch.float32:
            raise RuntimeError("could not create a primitive descriptor for the matmul primitive")
        return create(weight, num_shapes)

    monkeypatch.setattr(vllm_cpu._custom_ops, "create_onednn_mm", without_16_bits)
    layer = make_layer(dtype=torch.bfloat16, tokens=200)
    row_slots = [row % 3 for row in range(200)]
    output = our_output(layer, row_slots)
    assert output.dtype == torch.bfloat16
    stock = stock_output(layer, row_slots)
    torch.testing.assert_close(output.float(), stock.float(), atol=0.5, rtol=0.05)
    alone = Layer(y=layer.y[7:8], x=layer.x[7:8], lora_a=layer.lora_a, lora_b=layer.lora_b)
    assert torch.equal(our_output(alone, row_slots[7:8])[0], output[7])


class RecordingLayer:
    """Takes the place of a layer with LoRA: counts how often weights are written into its slots."""

    def __init__(self, on_write: Callable[[int], None] = lambda slot: None) -> None:
        """Call `on_write` with the slot whenever weights are written."""
        self.num_writes = 0
        self._on_write = on_write

    def set_lora(self, slot: int, *weights: object) -> None:
        """Count a write, as of an adapter with weights for this layer."""
        self.num_writes += 1
        self._on_write(slot)

    reset_lora = set_lora
    """An adapter without weights for this layer writes zeros."""


def make_adapter(number: int) -> LoRAModel:
    """Return an adapter as vLLM loads it, with weights for the layer of `make_manager`."""
    weights = LoRALayerWeights(
        module_name="layer",
        rank=1,
        lora_alpha=1,
        lora_a=torch.ones(1, HIDDEN),
        lora_b=torch.ones(HIDDEN, 1),
    )
    return LoRAModel(number, 1, {"layer": weights})


def make_manager(
    monkeypatch: pytest.MonkeyPatch, layer: RecordingLayer, wrapper: object
) -> LRUCacheLoRAModelManager:
    """Return vLLM's manager of adapters with one layer, two slots and our method in place.

    Args:
        monkeypatch: Puts our `activate_adapter` in the place of vLLM's until the test's end.
        layer: The layer.
        wrapper: The wrapper whose joined weights are to be forgotten.
    """
    monkeypatch.setattr(LoRAModelManager, "activate_adapter", vllm_cpu.activate_adapter)
    # Made without a model.
    manager = LRUCacheLoRAModelManager.__new__(LRUCacheLoRAModelManager)
    manager.lora_config = SimpleNamespace(max_loras=2, max_cpu_loras=4)
    manager._registered_adapters = AdapterLRUCache(4, manager.deactivate_adapter)
    manager._active_adapters = AdapterLRUCache(2, manager._deactivate_adapter)
    manager.lora_index_to_id = [None, None]
    manager.modules = {"layer": layer}
    manager.punica_wrapper_mapping = {"language": wrapper}
    # No mixture of experts, and no layers that vLLM packs into one.
    manager._enable_mixed_moe_lora_format = False
    manager._is_moe = False
    manager.packed_modules = {}
    manager.is_pooling_model = False
    return manager


def test_a_slot_that_gets_another_adapter_is_joined_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_layer()
    wrapper = make_wrapper([0] * 37)

    def double_first_slice(slot: int) -> None:
        layer.lora_b[0][slot] *= 2

    manager = make_manager(monkeypatch, RecordingLayer(double_first_slice), wrapper)
    manager.add_adapter(make_adapter(7))
    before = layer.output(wrapper)
    assert torch.equal(layer.output(wrapper), before)
    assert manager.activate_adapter(7)
    after = layer.output(wrapper)
    assert not torch.equal(after, before)
    assert torch.equal(after, our_output(layer, [0] * 37))
    assert not manager.activate_adapter(7), "it is in its slot already"


def test_joined_weights_are_forgotten_whenever_vllm_writes_weights_into_a_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights are written when an adapter is activated, and in no other way."""
    layer = RecordingLayer()
    wrapper = SimpleNamespace(joined={})
    manager = make_manager(monkeypatch, layer, wrapper)
    adapters = {number: make_adapter(number) for number in (1, 2, 3)}
    calls: list[tuple[str, Callable[[], object], int]] = [
        ("adding the first one", lambda: manager.add_adapter(adapters[1]), 0),
        ("activating the first one", lambda: manager.activate_adapter(1), 1),
        ("activating it again", lambda: manager.activate_adapter(1), 0),
        ("adding the second one", lambda: manager.add_adapter(adapters[2]), 0),
        ("activating the second one", lambda: manager.activate_adapter(2), 1),
        ("adding the third one", lambda: manager.add_adapter(adapters[3]), 0),
        (
            "activating the third one in the slot of the first",
            lambda: manager.activate_adapter(3),
            1,
        ),
        ("pinning the first one, which activates it", lambda: manager.pin_adapter(1), 1),
        ("deactivating the third one", lambda: manager.deactivate_adapter(3), 0),
        ("removing the third one", lambda: manager.remove_adapter(3), 0),
        ("removing the oldest one", manager.remove_oldest_adapter, 0),
    ]
    for name, call, num_writes in calls:
        wrapper.joined = {"kept": True}
        layer.num_writes = 0
        call()
        assert layer.num_writes == num_writes, name
        is_forgotten = wrapper.joined == {}
        assert is_forgotten == (num_writes > 0), name


def test_joined_weights_of_few_sets_of_slots_are_kept() -> None:
    layer = make_layer(slots=12, tokens=1)
    wrapper = make_wrapper([11])
    for slot in range(12):
        set_batch(wrapper, [slot], num_slots=12)
        ours = layer.output(wrapper)
        torch.testing.assert_close(ours, stock_output(layer, [slot]), atol=1e-4, rtol=1e-5)
    assert list(wrapper.joined) == [(4,), (5,), (6,), (7,), (8,), (9,), (10,), (11,)]


def test_the_stock_op_takes_what_ours_takes() -> None:
    parameters = inspect.signature(vllm_cpu.stock_add_lora_linear).parameters
    assert list(parameters) == [
        "self",
        "y",
        "x",
        "lora_a_stacked",
        "lora_b_stacked",
        "scale",
        "output_slices",
        "buffer",
        "kwargs",
    ]


def test_the_stock_update_of_the_cache_takes_what_ours_takes() -> None:
    stock = inspect.signature(vllm_cpu._stock_update).parameters
    ours = inspect.signature(vllm_cpu._update).parameters
    assert stock.keys() == ours.keys()


def test_only_finite_keys_and_values_reach_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[list[list[float]]] = []

    def record_update(
        self: object, layer: object, key: torch.Tensor, value: torch.Tensor, *_: object
    ) -> None:
        cached.append(key.tolist())
        cached.append(value.tolist())

    monkeypatch.setattr(vllm_cpu, "_stock_update", record_update)
    key = torch.tensor([[1.5, torch.nan], [torch.inf, -torch.inf]])
    vllm_cpu._update(None, None, key, torch.ones(2, 2), None, None)
    assert cached == [[[1.5, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]
