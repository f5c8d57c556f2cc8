"""Shared prefixes are computed once, with each sequence's own values and gradients."""

import copy
import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from test_forward_seams import MODELS, assert_same_gradients, made_model
from transformers import MistralConfig, MistralForCausalLM

from hanabi_grpo.sft.samples import reply_logits
from hanabi_grpo.training.model.forward import join_lora_products, reply_logps
from hanabi_grpo.training.model.prefix_tree import PrefixTree, prefix_tree
from hanabi_grpo.training.model.shared_prefixes import share_prefixes, shares_prefixes
from small_models import small_model

NUM_ROWS = 7
ROW_TOKENS = 15


def made_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and the mask of replies of seven sequences.

    They fork after 3, 6 and 9 tokens; two are alike, one is what others begin with, and one begins
    like no other.
    """
    shape = (NUM_ROWS, ROW_TOKENS)
    ids = torch.randint(1, 40, shape, generator=torch.Generator().manual_seed(3))
    ids[1:6, :3] = ids[0, :3]
    ids[2:6, :6] = ids[1, :6]
    ids[3, :9] = ids[2, :9]
    ids[4] = ids[3]
    mask = torch.zeros(NUM_ROWS, ROW_TOKENS - 1, dtype=torch.bool)
    mask[:, [1, 4, 5, 8, 12]] = True
    # Row 5 ends at its fork.
    ids[5, 6:] = 0
    mask[5, 5:] = False
    return ids, mask


IDS, MASK = made_rows()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a forward and a backward pass gave."""

    logps: torch.Tensor
    gradients: dict[str, torch.Tensor]


def forward_and_back(model: Any, temperature: float, tree: PrefixTree | None) -> Pass:
    logps = reply_logps(model, model, IDS, MASK, temperature, tree)
    weights = torch.randn(MASK.shape, generator=torch.Generator().manual_seed(5))
    model.zero_grad()
    (logps * weights).sum().backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return Pass(logps=logps.detach(), gradients=gradients)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["whole", "checkpointing"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_each_sequence_by_itself(
    kind: str, checkpointing: bool, temperature: float
) -> None:
    model = made_model(kind)
    join_lora_products(model)
    assert share_prefixes(model)
    if checkpointing:
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    shared = forward_and_back(model, temperature, prefix_tree(IDS, MASK))
    apart = forward_and_back(model, temperature, None)
    assert apart.logps.any()
    torch.testing.assert_close(shared.logps, apart.logps)
    assert_same_gradients(shared.gradients, apart.gradients)


def test_without_a_tree_attention_is_pytorchs_masks_included() -> None:
    plain = made_model()
    shared = made_model()
    assert share_prefixes(shared)
    behind_padding = (torch.arange(ROW_TOKENS) >= 4).long().expand(NUM_ROWS, ROW_TOKENS)
    for mask in (None, torch.ones_like(IDS), behind_padding):
        expected = plain(input_ids=IDS, attention_mask=mask).logits[:, 4:]
        logits = shared(input_ids=IDS, attention_mask=mask).logits[:, 4:]
        torch.testing.assert_close(logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shared", [False, True])
def test_rows_without_a_reply_give_a_gradient_of_zeros_to_every_adapter_weight(
    shared: bool,
) -> None:
    model = made_model()
    join_lora_products(model)
    ids = torch.zeros(1, 2, dtype=torch.long)
    mask = torch.zeros(1, 1, dtype=torch.bool)
    tree = None
    if shared:
        assert share_prefixes(model)
        tree = prefix_tree(ids, mask)
    logps = reply_logps(model, model, ids, mask, 1.0, tree)
    assert logps.tolist() == [[0.0]]
    logps.sum().backward()
    gradients = [value.grad for name, value in model.named_parameters() if ".player_0." in name]
    assert len(gradients) == 42
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_warm_starts_learn_the_same_and_see_each_beginning_once() -> None:
    marks = torch.nn.functional.pad(MASK, (1, 0))
    apart = small_model(vocab_size=40, num_hidden_layers=2)
    shared = copy.deepcopy(apart)
    assert share_prefixes(shared)
    assert shares_prefixes(shared)
    assert not shares_prefixes(apart)

    tokens_seen: list[int] = []

    def count_tokens(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        tokens_seen.append(output.shape[1])

    shared.get_decoder().layers[0].mlp.register_forward_hook(count_tokens)
    logits, targets = reply_logits(shared, IDS, marks)
    expected_logits, expected_targets = reply_logits(apart, IDS, marks)
    torch.testing.assert_close(logits, expected_logits)
    whole_logits = apart(input_ids=IDS).logits[:, :-1][MASK]
    torch.testing.assert_close(expected_logits, whole_logits)
    assert torch.equal(targets, expected_targets)
    assert torch.equal(targets, IDS[:, 1:][MASK])
    assert tokens_seen == [len(prefix_tree(IDS, MASK).ids)]

    for values in (logits, expected_logits):
        torch.nn.functional.cross_entropy(values, targets).backward()
    expected_parameters = apart.parameters()
    for (name, parameter), expected in zip(
        shared.named_parameters(), expected_parameters, strict=True
    ):
        torch.testing.assert_close(parameter.grad, expected.grad, msg=name)


def test_a_model_whose_attention_is_not_pytorchs_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = made_model()
    model.get_base_model().set_attn_implementation("eager")
    with caplog.at_level(logging.INFO):
        assert not share_prefixes(model)
    assert model.config._attn_implementation == "eager"
    assert "'eager'" in caplog.text


def made_mistral(sliding_window: int | None) -> MistralForCausalLM:
    config = MistralConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=sliding_window,
    )
    return MistralForCausalLM(config)


def test_a_model_whose_attention_has_a_window_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    windowed = made_mistral(sliding_window=64)
    assert not share_prefixes(windowed)
    assert windowed.config._attn_implementation == "sdpa"
    assert "sliding" in caplog.text
    assert share_prefixes(made_mistral(sliding_window=None))


def forward_without(name: str, forward: Any) -> Any:
    """Return a forward method that drops one of its options."""

    def dropping(self: Any, **options: Any) -> Any:
        options.pop(name, None)
        return forward(self, **options)

    return dropping


def test_a_model_that_does_not_pass_the_tree_on_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model(vocab_size=40, num_hidden_layers=2)
    forward = type(model).forward

    def refusing(self: Any, input_ids: torch.Tensor, use_cache: bool) -> Any:
        return forward(self, input_ids=input_ids, use_cache=use_cache)

    def assert_left_alone(changed: Any, reason: str) -> None:
        caplog.clear()
        monkeypatch.setattr(type(model), "forward", changed)
        assert not share_prefixes(model)
        assert model.config._attn_implementation == "sdpa"
        assert reason in caplog.text

    assert_left_alone(
        forward_without("prefix_trees", forward),
        "does not pass the prefix tree to its attention",
    )
    assert_left_alone(forward_without("position_ids", forward), "its logits differ by")
    assert_left_alone(refusing, "does not pass the prefix tree to its attention")
