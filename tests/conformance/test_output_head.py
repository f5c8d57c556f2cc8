"""Logprobs from the output head in chunks: the plain path's values and gradients, and closer to
float32 in 16 bits.
"""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_forward_seams import MODELS, SIZES, _model
from test_loss import CASES
from test_shared_prefixes import _rows
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.model import output_head
from hanabi_grpo.training.model.forward import reply_logps
from hanabi_grpo.training.model.output_head import chosen_logps, computes_logits, in_float32
from hanabi_grpo.training.model.prefix_tree import prefix_tree
from hanabi_grpo.training.model.shared_prefixes import share_prefixes
from small_models import small_model

IDS, MASK = _rows()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several of them in a batch of 30 replies, the last one not full.
    monkeypatch.setattr(output_head, "CHUNK", 4)


def _learned(
    model: Any, values: dict[str, Any], temperature: float, *, whole: bool, shared: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logprobs of replies and the gradient of a loss with these settings, as one tensor
    each.
    """
    seeded = torch.Generator().manual_seed(7)

    def drawn(spread: float) -> torch.Tensor:
        return torch.where(MASK, -3.5 + spread * torch.randn(MASK.shape, generator=seeded), 0.0)

    batch = MicroBatch(
        player="player_0",
        ids=IDS,
        lengths=torch.full((len(IDS),), 15),
        reply_mask=MASK,
        sampler_logprobs=drawn(0.3),
        advantages=torch.where(MASK, torch.randn(MASK.shape, generator=seeded), 0.0),
        num_reply_tokens=int(MASK.sum()),
        games=tuple(range(len(IDS))),
        old_logprobs=drawn(0.3),
        reference_logprobs=drawn(1.0),
    )
    tree = prefix_tree(IDS, MASK) if shared else None
    logps = reply_logps(model, model, IDS, MASK, temperature, tree, whole_logits=whole)
    model.zero_grad()
    PolicyLoss(Settings(**values))(logps, batch)[0].backward()
    found = [value.grad.flatten() for value in model.parameters() if value.grad is not None]
    assert logps.dtype == torch.float32 or whole
    return logps.detach()[MASK], torch.cat(found)


def _checkpointed(model: Any, reentrant: bool | None) -> Any:
    if reentrant is not None:
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    return model


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize(
    "reentrant", [None, False, True], ids=["whole", "not reentrant", "reentrant"]
)
def test_values_and_gradients_are_those_of_whole_logits_for_every_loss(
    shared: bool, reentrant: bool | None
) -> None:
    for kind in MODELS:
        model = _checkpointed(_model(kind), reentrant)
        assert not shared or share_prefixes(model)
        for values in CASES if kind == "qwen3" else CASES[:1]:
            for temperature in (1.0, 0.7):
                logps, gradient = _learned(model, values, temperature, whole=False, shared=shared)
                expected, other = _learned(model, values, temperature, whole=True, shared=shared)
                assert logps.unique().numel() >= 19
                torch.testing.assert_close(logps, expected, rtol=1e-6, atol=1e-6)
                assert float((gradient - other).abs().max()) <= 1e-6 * float(other.abs().max()), (
                    kind,
                    values,
                )


def test_in_16_bits_values_and_gradients_are_closer_to_those_in_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        errors = []
        for whole in (False, True):
            # Of several temperatures: with one, how the layers round may hide what the head rounds.
            squares = []
            for temperature in (1.0, 0.7, 0.3):
                low, exact = _model(dtype=dtype), _model(dtype=dtype).float()
                found = _learned(low, {"beta": 0.07}, temperature, whole=whole, shared=False)
                expected = _learned(exact, {"beta": 0.07}, temperature, whole=True, shared=False)
                squares.append(
                    [
                        float((one.float() - other).square().mean())
                        for one, other in zip(found, expected, strict=True)
                    ]
                )
            errors.append([sum(column) for column in zip(*squares, strict=True)])
        for chunked, plain in zip(*errors, strict=True):
            assert chunked < plain, (dtype, errors)


def test_a_model_of_16_bits_computes_in_float32_with_the_adapters_that_a_server_has() -> None:
    model = _model(dtype=torch.bfloat16)
    exact = copy.deepcopy(model)
    for value in exact.parameters():
        value.data = value.data.bfloat16().float()
    assert share_prefixes(model)
    with torch.autocast("cpu", torch.bfloat16), in_float32(model):
        found = reply_logps(model.base_model, model, IDS, MASK, 0.7, prefix_tree(IDS, MASK))
    torch.testing.assert_close(found, reply_logps(exact, exact, IDS, MASK, 0.7).detach())
    assert float((reply_logps(model, model, IDS, MASK, 0.7) - found).abs().max()) > 1e-3
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())


def test_a_bias_and_an_adapter_on_the_head_count() -> None:
    seeded = torch.Generator().manual_seed(0)
    hidden, tokens = (
        torch.randn(9, 8, generator=seeded),
        torch.randint(0, 12, (9, 2), generator=seeded),
    )
    head = torch.nn.Linear(8, 12)
    expected = torch.log_softmax(head(hidden) / 0.5, -1).gather(-1, tokens)
    torch.testing.assert_close(chosen_logps(head, hidden, tokens, 0.5), expected)
    base = MODELS["qwen3"][0](MODELS["qwen3"][1](**SIZES))
    config = LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(base, config).train()
    assert computes_logits(model) is None
    logps, gradient = _learned(model, {}, 1.0, whole=False, shared=False)
    expected, other = _learned(model, {}, 1.0, whole=True, shared=False)
    torch.testing.assert_close(logps, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-6)
    assert (
        sum(
            bool(value.grad.any())
            for name, value in model.named_parameters()
            if "lm_head.lora" in name
        )
        == 2
    )


def test_a_model_that_changes_its_heads_logits_is_found_before_the_first_step() -> None:
    sizes = {**SIZES, "head_dim": 8, "vocab_size": 40}
    gemma = Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=30.0))
    assert "differ by" in str(computes_logits(gemma))
    granite = GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=8.0))
    assert "differ by" in str(computes_logits(granite))
    for kind in MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            model = _model(kind, dtype)
            assert computes_logits(model) is None and model.training
            assert "forward" not in vars(model.get_output_embeddings())
    tied = small_model(tie_word_embeddings=True)
    assert computes_logits(tied) is None
