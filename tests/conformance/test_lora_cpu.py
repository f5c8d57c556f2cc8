"""Our LoRA op against vLLM's stock op, called through the same method."""

import inspect

import pytest
import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

from hanabi_grpo.server import kv_cpu, lora_cpu


class _Wrapper(PunicaWrapperCPU):
    """The stock wrapper with the row-to-adapter map given directly."""

    def __init__(self, indices: torch.Tensor) -> None:
        self._indices = indices
        self.no_lora = False
        self.is_prefill = False

    @property
    def token_lora_indices(self) -> torch.Tensor:
        return self._indices


def _case(dtype: torch.dtype, slots: int = 3, tokens: int = 37, rank: int = 8) -> dict[str, object]:
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


def test_a_batch_of_no_rows_is_no_error() -> None:
    case = _case(torch.float32, tokens=0)
    lora_cpu._add_lora_linear(_Wrapper(torch.tensor([], dtype=torch.long)), **case)


@pytest.mark.parametrize("indices", [[0] * 37, [0, 1, 2] * 12 + [1], [2] * 20 + [0] * 17])
def test_it_equals_the_stock_op_in_float32(indices: list[int]) -> None:
    case = _case(torch.float32)
    wrapper = _Wrapper(torch.tensor(indices))
    stock, ours = case["y"].clone(), case["y"].clone()
    lora_cpu.stock_add_lora_linear(wrapper, **{**case, "y": stock})
    lora_cpu._add_lora_linear(wrapper, **{**case, "y": ours})
    assert (ours - case["y"]).abs().max() > 1.0
    torch.testing.assert_close(ours, stock, atol=1e-4, rtol=1e-5)


def test_rows_without_an_adapter_stay_as_they_are() -> None:
    case = _case(torch.float32)
    wrapper = _Wrapper(torch.tensor([-1, 0] * 18 + [-1]))
    result = case["y"].clone()
    lora_cpu._add_lora_linear(wrapper, **{**case, "y": result})
    assert torch.equal(result[0::2], case["y"][0::2])
    assert not torch.equal(result[1::2], case["y"][1::2])


def test_an_adapter_that_no_row_uses_reaches_no_row_whatever_it_holds() -> None:
    for used in ([0, 2] * 18 + [0], [2] * 37, [-1, 2] * 18 + [0]):
        case = _case(torch.float32, slots=4)
        before, after = case["y"].clone(), case["y"].clone()
        lora_cpu._add_lora_linear(_Wrapper(torch.tensor(used)), **{**case, "y": before})
        for unused in {0, 1, 2, 3} - set(used):
            for weight in (*case["lora_a_stacked"], *case["lora_b_stacked"]):
                weight[unused] = torch.inf
        lora_cpu._add_lora_linear(_Wrapper(torch.tensor(used)), **{**case, "y": after})
        assert torch.equal(after, before), used


def test_an_adapter_moves_no_row_of_another_one() -> None:
    """Not by a bit, however large its product is."""
    case = _case(torch.float32)
    wrapper = _Wrapper(torch.tensor([0, 2] * 18 + [0]))
    before, after = case["y"].clone(), case["y"].clone()
    lora_cpu._add_lora_linear(wrapper, **{**case, "y": before})
    for name, factor in (("lora_a_stacked", torch.inf), ("lora_b_stacked", 1e30)):
        for weight in case[name]:
            weight[0] *= factor
    lora_cpu._add_lora_linear(wrapper, **{**case, "y": after})
    assert torch.equal(after[1::2], before[1::2])
    assert not torch.equal(after[0::2], before[0::2])


def test_bfloat16_keeps_the_largest_output_of_almost_every_row() -> None:
    case = _case(torch.bfloat16, tokens=200)
    wrapper = _Wrapper(torch.arange(200) % 3)
    stock, ours = case["y"].clone(), case["y"].clone()
    lora_cpu.stock_add_lora_linear(wrapper, **{**case, "y": stock})
    lora_cpu._add_lora_linear(wrapper, **{**case, "y": ours})
    assert (stock.argmax(1) == ours.argmax(1)).float().mean() > 0.97


def test_the_stock_method_still_has_the_signature_that_is_replaced() -> None:
    expected = ["self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices", "buffer", "kwargs"]
    assert list(inspect.signature(lora_cpu.stock_add_lora_linear).parameters) == expected


def test_only_finite_keys_and_values_reach_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[torch.Tensor] = []
    monkeypatch.setattr(kv_cpu, "_stock_update", lambda self, layer, key, value, *_: cached.extend((key, value)))
    odd = torch.tensor([[1.5, torch.nan], [torch.inf, -torch.inf]])
    kv_cpu._update(None, None, odd, torch.ones(2, 2), None, None)
    assert cached[0].tolist() == [[1.5, 0.0], [0.0, 0.0]] and cached[1].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    stock = CPUAttentionBackendImpl.do_kv_cache_update
    assert inspect.signature(stock).parameters.keys() == inspect.signature(kv_cpu._update).parameters.keys()
