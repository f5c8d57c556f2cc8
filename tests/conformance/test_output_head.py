"""Logprobs in chunks: the plain path's values and gradients, and closer to float32 in 16 bits."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_forward_seams import MODELS, SIZES, made_model
from test_loss import CASES
from test_shared_prefixes import IDS, MASK
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import adapters, output_head
from hanabi_grpo.training.model.forward import reply_logps
from hanabi_grpo.training.model.output_head import (
    chosen_logps,
    computes_logits,
    in_float32,
    law_of_logits,
)
from hanabi_grpo.training.model.prefix_tree import prefix_tree
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from small_models import small_model


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several of them in a batch of 30 replies, the last one not full.
    monkeypatch.setattr(output_head, "CHUNK", 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The logprobs of replies, and the gradient of a loss as one tensor."""

    logps: torch.Tensor
    gradient: torch.Tensor


def made_batch() -> MicroBatch:
    """Return a batch with logprobs of every policy that a loss may read."""
    generator = torch.Generator().manual_seed(7)

    def random_logps(spread: float) -> torch.Tensor:
        logps = -3.5 + spread * torch.randn(MASK.shape, generator=generator)
        return torch.where(MASK, logps, 0.0)

    return MicroBatch(
        player="player_0",
        ids=IDS,
        lengths=torch.full((len(IDS),), 15),
        reply_mask=MASK,
        sampler_logprobs=random_logps(0.3),
        advantages=torch.where(MASK, torch.randn(MASK.shape, generator=generator), 0.0),
        num_reply_tokens=int(MASK.sum()),
        games=tuple(range(len(IDS))),
        old_logprobs=random_logps(0.3),
        reference_logprobs=random_logps(1.0),
    )


def learn(
    model: Any, values: dict[str, Any], temperature: float, *, whole: bool, shared: bool
) -> Learned:
    """Compute a loss and its gradient.

    Args:
        model: With adapters.
        values: Settings of the loss.
        temperature: Of the sampling.
        whole: Logits of all replies at once.
        shared: Prefixes are computed once.
    """
    tree = prefix_tree(IDS, MASK) if shared else None
    logps = reply_logps(model, model, IDS, MASK, temperature, tree, whole_logits=whole)
    assert logps.dtype == torch.float32 or whole
    model.zero_grad()
    PolicyLoss(Settings(**values))(logps, made_batch())[0].backward()
    gradients = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradients.append(parameter.grad.flatten())
    return Learned(logps=logps.detach()[MASK], gradient=torch.cat(gradients))


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize(
    "reentrant", [None, False, True], ids=["whole", "not reentrant", "reentrant"]
)
def test_values_and_gradients_are_those_of_whole_logits_for_every_loss(
    shared: bool, reentrant: bool | None
) -> None:
    for kind in MODELS:
        model = made_model(kind)
        if reentrant is not None:
            model.get_base_model().gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        assert not shared or share_prefixes(model)
        for values in CASES if kind == "qwen3" else CASES[:1]:
            for temperature in (1.0, 0.7):
                found = learn(model, values, temperature, whole=False, shared=shared)
                expected = learn(model, values, temperature, whole=True, shared=shared)
                assert found.logps.unique().numel() >= 19
                torch.testing.assert_close(found.logps, expected.logps, rtol=1e-6, atol=1e-6)
                largest = float(expected.gradient.abs().max())
                gap = float((found.gradient - expected.gradient).abs().max())
                assert gap <= 1e-6 * largest, (kind, values)


def squared_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).square().mean())


def rounding_errors(dtype: torch.dtype, *, whole: bool) -> tuple[float, float]:
    """Return the squared errors of logprobs and gradient against a model in float32.

    Sums over several temperatures: with one, how the layers round may hide what the head rounds.
    """
    values = {"beta": 0.07}
    of_logps = 0.0
    of_gradients = 0.0
    for temperature in (1.0, 0.7, 0.3):
        rounded = made_model(dtype=dtype)
        exact = made_model(dtype=dtype).float()
        found = learn(rounded, values, temperature, whole=whole, shared=False)
        expected = learn(exact, values, temperature, whole=True, shared=False)
        of_logps += squared_error(found.logps, expected.logps)
        of_gradients += squared_error(found.gradient, expected.gradient)
    return of_logps, of_gradients


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_values_and_gradients_are_closer_to_those_in_float32(
    dtype: torch.dtype,
) -> None:
    chunked = rounding_errors(dtype, whole=False)
    plain = rounding_errors(dtype, whole=True)
    assert chunked[0] < plain[0]
    assert chunked[1] < plain[1]


def test_a_model_of_16_bits_computes_in_float32_with_the_adapters_that_a_server_has() -> None:
    model = made_model(dtype=torch.bfloat16)
    exact = copy.deepcopy(model)
    for parameter in exact.parameters():
        parameter.data = parameter.data.bfloat16().float()
    assert share_prefixes(model)
    with torch.autocast("cpu", torch.bfloat16), in_float32(model):
        found = reply_logps(model.base_model, model, IDS, MASK, 0.7, prefix_tree(IDS, MASK))
    expected = reply_logps(exact, exact, IDS, MASK, 0.7).detach()
    torch.testing.assert_close(found, expected)
    rounded = reply_logps(model, model, IDS, MASK, 0.7).detach()
    assert float((rounded - found).abs().max()) > 1e-3
    for module in model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks


OTHER_WEIGHTS = {
    # Layer norms, which PyTorch computes in one call with their weights.
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, {}),
    # A second embedding, whose output is added to the first one's.
    "opt": (OPTForCausalLM, OPTConfig, {"word_embed_proj_dim": 32, "ffn_dim": 48}),
    # A convolution, and layers whose weights are multiplied as they are.
    "qwen3_next": (
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        {
            "num_experts": 0,
            "head_dim": 8,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
        },
    ),
}
"""Models whose weights are not all those of linear layers."""


@pytest.mark.parametrize("kind", OTHER_WEIGHTS)
def test_a_model_of_16_bits_computes_in_float32_whatever_layers_it_has(kind: str) -> None:
    model_class, config_class, sizes = OTHER_WEIGHTS[kind]
    torch.manual_seed(0)
    base = model_class(config_class(**SIZES, **sizes)).bfloat16()
    # New adapters add nothing, so that rounding them changes nothing.
    model = adapters.add_adapters(base, ["player_0"], rank=4, alpha=8, seed=1).eval()
    exact = copy.deepcopy(model).float()
    held = {name: value.data_ptr() for name, value in model.named_parameters()}
    with in_float32(model):
        found = reply_logps(model.base_model, model, IDS, MASK, 0.7)
    expected = reply_logps(exact, exact, IDS, MASK, 0.7).detach()
    torch.testing.assert_close(found, expected)
    assert {name: value.data_ptr() for name, value in model.named_parameters()} == held
    for module in model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks


def test_a_bias_of_the_head_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 8, generator=generator)
    tokens = torch.randint(0, 12, (9, 2), generator=generator)
    head = torch.nn.Linear(8, 12)
    expected = torch.log_softmax(head(hidden) / 0.5, -1).gather(-1, tokens)
    torch.testing.assert_close(chosen_logps(head, hidden, tokens, 0.5), expected)


def test_an_adapter_on_the_head_counts() -> None:
    model_class, config_class, _ = MODELS["qwen3"]
    base = model_class(config_class(**SIZES))
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(base, config).train()
    assert computes_logits(model) is None
    found = learn(model, {}, 1.0, whole=False, shared=False)
    expected = learn(model, {}, 1.0, whole=True, shared=False)
    torch.testing.assert_close(found.logps, expected.logps, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-5, atol=1e-6)
    of_head = [value for name, value in model.named_parameters() if "lm_head.lora" in name]
    assert sum(bool(value.grad.any()) for value in of_head) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_model_that_changes_its_heads_logits_is_found_before_the_first_step(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    gemma_config = Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=30.0)
    assert "they differ from its output head" in str(
        computes_logits(Gemma2ForCausalLM(gemma_config).to(dtype))
    )
    granite_config = GraniteConfig(**SIZES, logits_scaling=8.0)
    assert "they differ from its output head" in str(
        computes_logits(GraniteForCausalLM(granite_config).to(dtype))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_a_plain_model_passes_the_trial_and_is_as_before(kind: str, dtype: torch.dtype) -> None:
    model = made_model(kind, dtype)
    assert computes_logits(model) is None
    assert model.training
    assert "forward" not in vars(model.get_output_embeddings())


def test_tied_embeddings_pass_the_trial() -> None:
    assert computes_logits(small_model(tie_word_embeddings=True)) is None


def test_the_law_of_surprises_is_exact_where_the_policy_is_sure_and_where_nothing_is() -> None:
    ceiling = 5.0
    num_tokens = 150_000
    nearly_uniform = torch.randn(1, num_tokens, generator=torch.Generator().manual_seed(0))
    sure = torch.full((1, num_tokens), -40.0)
    sure[0, 0] = 0.0
    sure[0, 1] = -15.0
    for logits in (nearly_uniform, sure):
        law = law_of_logits(logits, torch.zeros(1, 1, dtype=torch.long), 1.0, ceiling)
        logps = torch.log_softmax(logits.double(), -1)
        surprise = (-logps).clamp(max=ceiling)
        mean = (logps.exp() * surprise).sum()
        variance = (logps.exp() * (surprise - mean).square()).sum()
        assert float(law.mean) == pytest.approx(float(mean), abs=1e-7, rel=1e-6)
        assert float(law.variance) == pytest.approx(float(variance), abs=1e-7, rel=1e-5)
