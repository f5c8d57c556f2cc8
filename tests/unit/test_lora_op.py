"""The joined LoRA operation against PEFT's layer."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import _JoinedLora, join_lora_products

NAMES = ("player_0", "player_1")


class _Net(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 24, bias=bias)
        self.second = nn.Linear(24, 6, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def _peft(*, bias: bool = False, dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["first", "second"], lora_dropout=dropout)
    model = get_peft_model(_Net(bias), config, adapter_name=NAMES[0])
    model.add_adapter(NAMES[1], config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.3)
        else:
            parameter.data = parameter.data.to(dtype)
    adapters.use_adapter(model, NAMES[1])
    return model


def test_the_written_out_gradient_is_the_numerical_one() -> None:
    seeded = torch.Generator().manual_seed(0)
    shapes = ((3, 5), (4, 5), (4,), (2, 5), (4, 2))
    x, weight, bias, down, up = (torch.randn(shape, generator=seeded, dtype=torch.float64) for shape in shapes)
    wanted = [one.requires_grad_() for one in (x, down, up)]
    assert torch.autograd.gradcheck(lambda x, down, up: _JoinedLora.apply(x, weight, bias, down, up, 1.5), wanted)


@pytest.mark.parametrize("case", ["bfloat16", "autocast", "dropout", "merged"])
def test_where_it_does_not_hold_pefts_own_layer_answers(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    dtype = torch.bfloat16 if case == "bfloat16" else torch.float32
    plain = _peft(dtype=dtype, dropout=0.5 if case == "dropout" else 0.0)
    joined = copy.deepcopy(plain)
    join_lora_products(joined)
    monkeypatch.setattr(_JoinedLora, "apply", lambda *_: pytest.fail("the joined operation was used"))
    outputs = []
    for model in (plain, joined):
        if case == "merged":
            model.merge_adapter([NAMES[1]])
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            torch.manual_seed(3)
            outputs.append(model(torch.ones(4, 8, dtype=dtype)))
    assert torch.equal(*outputs)
