"""What sequences begin with alike is computed once, with the values and gradients of each sequence
by itself.
"""

import copy
import logging
from typing import Any

import pytest
import torch
from test_forward_seams import MODELS, _model
from transformers import MistralConfig, MistralForCausalLM

from hanabi_grpo.sft.samples import reply_logits
from hanabi_grpo.training.model.forward import join_lora_products, reply_logps
from hanabi_grpo.training.model.prefix_tree import prefix_tree
from hanabi_grpo.training.model.shared_prefixes import share_prefixes, shares_prefixes
from small_models import small_model


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Seven sequences: forks after 3, 6 and 9 tokens, two alike, one that others begin with, one of
    its own.
    """
    ids = torch.randint(1, 40, (7, 15), generator=torch.Generator().manual_seed(3))
    ids[1:6, :3] = ids[0, :3]
    ids[2:6, :6] = ids[1, :6]
    ids[3, :9] = ids[2, :9]
    ids[4] = ids[3]
    mask = torch.zeros(7, 14, dtype=torch.bool)
    mask[:, [1, 4, 5, 8, 12]] = True
    # Row 5 ends at its fork.
    ids[5, 6:], mask[5, 5:] = 0, False
    return ids, mask


def _both(
    model: Any, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any], dict[str, Any]]:
    """Logprobs shared and each by itself, and the gradients of both."""
    ids, mask = _rows()
    found = []
    for tree in (prefix_tree(ids, mask), None):
        logps = reply_logps(model, model, ids, mask, temperature, tree)
        weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(5))
        model.zero_grad()
        (logps * weights).sum().backward()
        gradients = {
            name: value.grad.clone()
            for name, value in model.named_parameters()
            if value.grad is not None
        }
        found.append((logps.detach(), gradients))
    (shared, gradients), (alone, expected) = found
    return shared, alone, gradients, expected


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["whole", "checkpointing"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_each_sequence_by_itself(
    kind: str, checkpointing: bool, temperature: float
) -> None:
    model = _model(kind)
    join_lora_products(model)
    assert share_prefixes(model)
    if checkpointing:
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    shared, alone, gradients, expected = _both(model, temperature)
    torch.testing.assert_close(shared, alone)
    assert alone.any() and gradients.keys() == expected.keys() and len(expected) == 3 * 7 * 2
    flat, other = (
        torch.cat([one[name].flatten() for name in expected]) for one in (gradients, expected)
    )
    assert torch.cosine_similarity(flat, other, 0) > 0.99999
    assert float((flat - other).abs().max()) < 1e-5 * float(other.abs().max())


def test_without_a_tree_attention_is_pytorchs_masks_included() -> None:
    plain, shared = _model(), _model()
    assert share_prefixes(shared)
    ids, _ = _rows()
    for mask in (None, torch.ones_like(ids), (torch.arange(15) >= 4).long().expand(7, 15)):
        expected = plain(input_ids=ids, attention_mask=mask).logits[:, 4:]
        torch.testing.assert_close(
            shared(input_ids=ids, attention_mask=mask).logits[:, 4:], expected, rtol=0, atol=0
        )


@pytest.mark.parametrize("shared", [False, True])
def test_rows_without_a_reply_give_a_gradient_of_zeros_to_every_adapter_weight(
    shared: bool,
) -> None:
    model = _model()
    join_lora_products(model)
    ids, mask = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 1, dtype=torch.bool)
    assert not shared or share_prefixes(model)
    logps = reply_logps(model, model, ids, mask, 1.0, prefix_tree(ids, mask) if shared else None)
    assert logps.tolist() == [[0.0]]
    logps.sum().backward()
    gradients = [value.grad for name, value in model.named_parameters() if ".player_0." in name]
    assert len(gradients) == 42
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_warm_starts_learn_the_same_and_see_each_beginning_once() -> None:
    ids, mask = _rows()
    marks = torch.nn.functional.pad(mask, (1, 0))
    alone = small_model(vocab_size=40, num_hidden_layers=2)
    shared = copy.deepcopy(alone)
    assert share_prefixes(shared) and shares_prefixes(shared) and not shares_prefixes(alone)
    seen: list[int] = []
    shared.get_decoder().layers[0].mlp.register_forward_hook(
        lambda *call: seen.append(call[2].shape[1])
    )
    (logits, targets), (expected, wanted) = (
        reply_logits(model, ids, marks) for model in (shared, alone)
    )
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(expected, alone(input_ids=ids).logits[:, :-1][mask])
    assert torch.equal(targets, wanted) and torch.equal(targets, ids[:, 1:][mask])
    assert seen == [len(prefix_tree(ids, mask).ids)]
    for values in (logits, expected):
        torch.nn.functional.cross_entropy(values, targets).backward()
    for (name, one), other in zip(shared.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_a_model_whose_attention_is_not_pytorchs_or_has_a_window_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _model()
    model.get_base_model().set_attn_implementation("eager")
    with caplog.at_level(logging.INFO):
        assert not share_prefixes(model)
    assert model.config._attn_implementation == "eager" and "'eager'" in caplog.text
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    windowed = MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=64))
    assert not share_prefixes(windowed)
    assert windowed.config._attn_implementation == "sdpa" and "sliding" in caplog.text
    assert share_prefixes(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=None)))


def test_a_model_that_hands_no_tree_on_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model(vocab_size=40, num_hidden_layers=2)
    forward = type(model).forward

    def without(name: str) -> Any:
        return lambda self, **options: forward(
            self, **{key: options[key] for key in options if key != name}
        )

    def refusing(self: Any, input_ids: torch.Tensor, use_cache: bool) -> Any:
        return forward(self, input_ids=input_ids, use_cache=use_cache)

    reasons = (
        "does not hand a tree to its attention",
        "its logits differ by",
        "does not hand a tree to its attention",
    )
    for changed, reason in zip(
        (without("prefix_tree"), without("position_ids"), refusing), reasons, strict=True
    ):
        caplog.clear()
        monkeypatch.setattr(type(model), "forward", changed)
        assert not share_prefixes(model)
        assert model.config._attn_implementation == "sdpa"
        assert reason in caplog.text
