"""Our forward pass gives the values and gradients of ms-swift's own."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.forward import _JoinedLora, join_lora_products, reply_logps
from hanabi_grpo.training.model.shared_prefixes import token_wise
from hanabi_grpo.training.policy import Policy

NAMES = ("player_0", "player_1")
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
NUM_LORA_LAYERS = 3 * 7
"""Seven linear maps in each of three layers."""
NUM_LORA_WEIGHTS = NUM_LORA_LAYERS * 2
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
}


def made_model(kind: str = "qwen3", dtype: torch.dtype = torch.float32) -> PeftModel:
    """Return a small model with two adapters that say something, ready to train."""
    model, config, other_sizes = MODELS[kind]
    torch.manual_seed(0)
    base = model(config(**SIZES, **other_sizes)).to(dtype)
    peft_model = adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)
    for name, parameter in peft_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return peft_model.train()


LENGTHS = torch.tensor([12, 9, 5])
"""Of three sequences, padded on the right."""
ATTENTION = (torch.arange(12) < LENGTHS[:, None]).long()
IDS = torch.randint(1, 40, (3, 12), generator=torch.Generator().manual_seed(3)) * ATTENTION
MASK = torch.zeros(3, 11, dtype=torch.bool)
"""Of replies; the third sequence has none."""
MASK[0, [3, 4, 10]] = True
MASK[1, [0, 6, 7]] = True
NUM_REPLY_TOKENS = 6


def ms_swifts_logps(model: PeftModel, temperature: float) -> torch.Tensor:
    trainer = SimpleNamespace(
        model_kwarg_keys={"use_cache", "logits_to_keep"},
        temperature=temperature,
        template=SimpleNamespace(padding_free=False),
    )
    inputs = {"input_ids": IDS, "attention_mask": ATTENTION}
    return GRPOTrainer._get_logps_via_local_forward(trainer, model, inputs, 11, IDS)[0]


def gradients_of(model: PeftModel, logps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradient of a weighted sum of the replies' logprobs."""
    weights = torch.randn(MASK.shape, generator=torch.Generator().manual_seed(5))
    model.zero_grad()
    (logps * weights * MASK).sum().backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return gradients


def assert_same_gradients(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    assert found.keys() == expected.keys()
    assert len(found) == NUM_LORA_WEIGHTS
    flat_found = torch.cat([found[name].flatten() for name in expected])
    flat_expected = torch.cat([value.flatten() for value in expected.values()])
    assert torch.cosine_similarity(flat_found, flat_expected, 0) > 0.99999
    largest = float(flat_expected.abs().max())
    assert float((flat_found - flat_expected).abs().max()) < 1e-5 * largest


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("joined", [False, True], ids=["peft", "joined"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_ms_swifts_pass(
    kind: str, joined: bool, temperature: float
) -> None:
    model = made_model(kind)
    theirs = ms_swifts_logps(model, temperature)
    expected = gradients_of(model, theirs)
    if joined:
        assert join_lora_products(model) == NUM_LORA_LAYERS
    ours = reply_logps(model, model, IDS, MASK, temperature)
    found = gradients_of(model, ours)
    torch.testing.assert_close(ours[MASK], theirs[MASK])
    assert not ours[~MASK].any()
    assert_same_gradients(found, expected)


def test_with_gradient_checkpointing_only_the_head_is_spared_and_the_gradient_is_the_same() -> None:
    model = made_model()
    expected = gradients_of(model, reply_logps(model, model, IDS, MASK, 1.0))
    assert len(token_wise(model)) == 2
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    assert token_wise(model) == []
    found = gradients_of(model, reply_logps(model, model, IDS, MASK, 1.0))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def made_batch() -> MicroBatch:
    """Return the replies of `IDS` as the first player's, without a signal to learn from."""
    return MicroBatch(
        player=NAMES[0],
        ids=IDS,
        lengths=LENGTHS,
        reply_mask=MASK,
        sampler_logprobs=torch.zeros(MASK.shape),
        advantages=torch.zeros(MASK.shape),
        num_reply_tokens=NUM_REPLY_TOKENS,
        games=(0, 1, 2),
    )


def test_a_pass_without_gradient_runs_no_checkpointing_and_leaves_it_on() -> None:
    model = made_model()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    policy = Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    batch = made_batch()
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    num_checkpoints = 0

    def count(run_layer: Any, *args: Any) -> Any:
        nonlocal num_checkpoints
        num_checkpoints += 1
        return run_layer(*args)

    for layer in layers:
        layer._gradient_checkpointing_func = count
    expected = policy.logprobs(batch)
    assert num_checkpoints == len(layers) > 0
    with policy.in_float32():
        measured = [
            policy.fixed_logprobs(batch)[MASK],
            policy.float32_logprobs(batch, NAMES[0]),
            policy.served_logprobs(batch, NAMES[0]),
        ]
    policy.reference_logprobs(batch)
    assert num_checkpoints == len(layers)
    for logprobs in measured:
        torch.testing.assert_close(logprobs, expected[MASK].detach())
    assert all(layer.gradient_checkpointing for layer in layers)


MODELS_WITH_DROPOUT = {
    # Shares of attention and of modules.
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, {"hidden_dropout": 0.2}),
    # Shares of `functional.dropout`, and of whole layers.
    "opt": (OPTForCausalLM, OPTConfig, {"dropout": 0.2, "layerdrop": 0.5}),
    # Attention alone.
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
}


@pytest.mark.parametrize("kind", MODELS_WITH_DROPOUT)
def test_a_model_with_dropout_trains_on_the_logprobs_that_it_is_served_with(kind: str) -> None:
    model_class, config_class, shares = MODELS_WITH_DROPOUT[kind]
    torch.manual_seed(0)
    base = model_class(config_class(**SIZES, attention_dropout=0.3, **shares))
    model = adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)
    served = reply_logps(model.eval(), model, IDS, MASK, 1.0).detach()
    policy = Policy(model.train(), NAMES, temperature=1.0, has_whole_weights=True)
    batch = made_batch()
    torch.testing.assert_close(policy.logprobs(batch), served)
    torch.testing.assert_close(policy.fixed_logprobs(batch), served)


def made_mixture() -> PeftModel:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    base = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **sizes))
    return adapters.add_adapters(base, NAMES, rank=4, alpha=8, seed=1)


def test_adapters_of_a_mixture_of_experts_cover_its_attention_alone() -> None:
    model = made_mixture()
    covered = set()
    for path, module in model.named_modules():
        if isinstance(module, LoraLayer):
            covered.add(path.rpartition(".")[2])
    assert covered == {"q_proj", "k_proj", "v_proj", "o_proj"}
    for name in NAMES:
        assert not model.peft_config[name].target_parameters
    Policy(model, NAMES, temperature=1.0, has_whole_weights=True)


def test_adapters_on_experts_are_refused_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As with a mixture whose configuration names its experts in a way that is not known.
    monkeypatch.setattr(adapters, "is_mixture", lambda config: False)
    model = made_mixture()
    with pytest.raises(SettingsError, match=r"\(down_proj, gate_up_proj, weight\)") as refused:
        Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    assert "Choose another model" in str(refused.value)


def test_only_the_wanted_logits_are_computed_and_no_hook_stays_behind() -> None:
    model = made_model()
    shapes = []
    head = model.get_output_embeddings()
    watch = head.register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape)))
    reply_logps(model, model, IDS, MASK, 1.0)
    # What the head reads; then its logits.
    assert shapes == [(1, NUM_REPLY_TOKENS, 32), (NUM_REPLY_TOKENS, 40)]
    watch.remove()
    for module in [head, *token_wise(model)]:
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert model(input_ids=IDS).logits.shape == (3, 12, 40)


@pytest.mark.parametrize("case", ["bfloat16", "autocast", "merged"])
def test_where_the_joined_operation_does_not_hold_pefts_own_layer_answers(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    plain = made_model(dtype=torch.bfloat16 if case == "bfloat16" else torch.float32)
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
            outputs.append(model(input_ids=IDS).logits)
    assert torch.equal(*outputs)
