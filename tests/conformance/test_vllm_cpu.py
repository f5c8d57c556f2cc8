"""What is ours in vLLM's CPU build against the stock methods: LoRA rows and a finite cache."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.model_manager import LoRAModelManager, LRUCacheLoRAModelManager
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from hanabi_grpo.server import vllm_cpu


def _wrapper(indices: list[int]) -> PunicaWrapperCPU:
    """vLLM's, brought to a batch as its own code does; a row's number is its adapter's slot, -1:
    none.
    """
    wrapper = PunicaWrapperCPU(max(len(indices), 1), max(len(indices), 1), "cpu")
    rows = tuple(index + 1 for index in indices)
    ids = list(range(1, max(rows, default=0) + 1))
    mapping = LoRAMapping(index_mapping=rows, prompt_mapping=rows, is_prefill=False)
    vllm_cpu.update_metadata(wrapper, mapping, ids, len(ids) + 1, 1000)
    return wrapper


def _case(
    dtype: torch.dtype = torch.float32, slots: int = 3, tokens: int = 37, rank: int = 8
) -> dict[str, object]:
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


def _added(
    case: dict[str, object], indices: list[int], method: object = vllm_cpu.add_lora_linear
) -> torch.Tensor:
    y = case["y"].clone()
    method(_wrapper(indices), **{**case, "y": y})
    return y


@pytest.mark.parametrize(
    "indices", [[0] * 37, [0, 1, 2] * 12 + [1], [2] * 20 + [0] * 17, [0, 2] * 50]
)
def test_it_equals_the_stock_op_in_float32(indices: list[int]) -> None:
    case = _case(tokens=len(indices))
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
    manager.modules, manager.lora_index_to_id, manager._active_adapters = (
        {"layer": Layer()},
        [None],
        {},
    )
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
        mapping = LoRAMapping(
            index_mapping=(slot + 1,), prompt_mapping=(slot + 1,), is_prefill=False
        )
        vllm_cpu.update_metadata(wrapper, mapping, list(range(1, 13)), 13, 1000)
        y = case["y"].clone()
        vllm_cpu.add_lora_linear(wrapper, **{**case, "y": y})
        torch.testing.assert_close(
            y, _added(case, [slot], vllm_cpu.stock_add_lora_linear), atol=1e-4, rtol=1e-5
        )
    assert list(wrapper.joined) == [(slot,) for slot in range(4, 12)]


def test_the_stock_methods_still_are_what_is_replaced() -> None:
    expected = [
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
    assert list(inspect.signature(vllm_cpu.stock_add_lora_linear).parameters) == expected
    # A slot's weights change when an adapter is activated, and in no other way.
    manager = inspect.getsource(LoRAModelManager)
    assert (
        manager.count(".set_lora(")
        == inspect.getsource(vllm_cpu.stock_activate_adapter).count(".set_lora(")
        == 1
    )
    assert "super().activate_adapter(" in inspect.getsource(
        LRUCacheLoRAModelManager.activate_adapter
    )


def test_only_finite_keys_and_values_reach_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[torch.Tensor] = []
    stock = vllm_cpu._stock_update
    monkeypatch.setattr(
        vllm_cpu, "_stock_update", lambda self, layer, key, value, *_: cached.extend((key, value))
    )
    odd = torch.tensor([[1.5, torch.nan], [torch.inf, -torch.inf]])
    vllm_cpu._update(None, None, odd, torch.ones(2, 2), None, None)
    assert cached[0].tolist() == [[1.5, 0.0], [0.0, 0.0]] and cached[1].tolist() == [
        [1.0, 1.0],
        [1.0, 1.0],
    ]
    assert (
        inspect.signature(stock).parameters.keys()
        == inspect.signature(vllm_cpu._update).parameters.keys()
    )
