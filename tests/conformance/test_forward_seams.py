"""Our forward pass gives the values and gradients of ms-swift's own, and what it hooks into is
where it was.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import _JoinedLora, join_lora_products, reply_logps
from hanabi_grpo.training.model.shared_prefixes import token_wise

NAMES = ("player_0", "player_1")
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
}


def _model(kind: str = "qwen3", dtype: torch.dtype = torch.float32) -> PeftModel:
    model, config, other = MODELS[kind]
    torch.manual_seed(0)
    base = model(config(**SIZES, **other)).to(dtype)
    peft_model = adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return peft_model.train()


def _rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three sequences of 12, 9 and 5 tokens, padded on the right; the third has no reply."""
    seeded = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 40, (3, 12), generator=seeded)
    attention = (torch.arange(12) < torch.tensor([12, 9, 5])[:, None]).long()
    mask = torch.zeros(3, 11, dtype=torch.bool)
    mask[0, [3, 4, 10]] = mask[1, [0, 6, 7]] = True
    return ids * attention, attention, mask


def _theirs(model: PeftModel, temperature: float) -> torch.Tensor:
    ids, attention, _ = _rows()
    trainer = SimpleNamespace(
        model_kwarg_keys={"use_cache", "logits_to_keep"},
        temperature=temperature,
        template=SimpleNamespace(padding_free=False),
    )
    inputs = {"input_ids": ids, "attention_mask": attention}
    return GRPOTrainer._get_logps_via_local_forward(trainer, model, inputs, 11, ids)[0]


def _gradients(model: PeftModel, logps: torch.Tensor) -> dict[str, torch.Tensor]:
    _, _, mask = _rows()
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(5))
    model.zero_grad()
    (logps * weights * mask).sum().backward()
    return {
        name: value.grad.clone()
        for name, value in model.named_parameters()
        if value.grad is not None
    }


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("joined", [False, True], ids=["peft", "joined"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_ms_swifts_pass(
    kind: str, joined: bool, temperature: float
) -> None:
    model = _model(kind)
    ids, _, mask = _rows()
    theirs = _theirs(model, temperature)
    expected = _gradients(model, theirs)
    if joined:
        assert join_lora_products(model) == 3 * 7
    ours = reply_logps(model, model, ids, mask, temperature)
    found = _gradients(model, ours)
    torch.testing.assert_close(ours[mask], theirs[mask])
    assert not ours[~mask].any()
    assert found.keys() == expected.keys() and len(found) == 3 * 7 * 2
    flat, other = (
        torch.cat([one[name].flatten() for name in expected]) for one in (found, expected)
    )
    assert torch.cosine_similarity(flat, other, 0) > 0.99999
    assert float((flat - other).abs().max()) < 1e-5 * float(other.abs().max())


def test_with_gradient_checkpointing_only_the_head_is_spared_and_the_gradient_is_the_same() -> None:
    model = _model()
    ids, _, mask = _rows()
    expected = _gradients(model, reply_logps(model, model, ids, mask, 1.0))
    assert len(token_wise(model)) == 2
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    assert token_wise(model) == []
    found = _gradients(model, reply_logps(model, model, ids, mask, 1.0))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_only_the_wanted_logits_are_computed_and_no_hook_stays_behind() -> None:
    model = _model()
    ids, _, mask = _rows()
    shapes = []
    head = model.get_output_embeddings()
    watch = head.register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape)))
    reply_logps(model, model, ids, mask, 1.0)
    # What the head reads, handed out; then its logits.
    assert shapes == [(1, 6, 32), (6, 40)]
    watch.remove()
    modules = [head, *token_wise(model)]
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in modules)
    assert model(input_ids=ids).logits.shape == (3, 12, 40)


@pytest.mark.parametrize("case", ["bfloat16", "autocast", "merged"])
def test_where_the_joined_operation_does_not_hold_pefts_own_layer_answers(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    plain = _model(dtype=torch.bfloat16 if case == "bfloat16" else torch.float32)
    joined = copy.deepcopy(plain)
    join_lora_products(joined)
    monkeypatch.setattr(
        _JoinedLora, "apply", lambda *_: pytest.fail("the joined operation was used")
    )
    outputs = []
    for model in (plain, joined):
        if case == "merged":
            model.merge_adapter([NAMES[0]])
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            outputs.append(model(input_ids=_rows()[0]).logits)
    assert torch.equal(*outputs)
