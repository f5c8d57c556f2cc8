"""Logprobs from hidden states: through the output head in float32, and never the logits of a whole
micro-batch.

With 151,936 tokens in the vocabulary and 35,000 of a reply logits take 10 GB in bfloat16, and with
a float32 copy and a gradient several times as much. Here the model hands out what its head reads,
and the head is called with `CHUNK` tokens at a time; in the backward pass again, so that one chunk
is held.

The head is called as the module that it is, with its weights in float32, so that a bias or an
adapter on it counts."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from hanabi_grpo.training.model.shared_prefixes import largest_gap

CHUNK = 1024
"""Tokens whose logits are held at once."""


@contextlib.contextmanager
def forward_as(
    module: torch.nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Let a function take the place of a module's own."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def handing_out(head: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Let the model return as its logits what its output head would read.

    As its output, for DeepSpeed begins a backward pass where it meets the gradient of what the
    model returned."""
    return forward_as(head, lambda hidden: hidden)


@contextlib.contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Let a model of 16 bits compute in float32, without a gradient, with the weights that a server
    has.

    Adapters are in float32 here and rounded there, by more than a small step moves a weight. What
    is called must be PEFT's `base_model`, for accelerate wraps autocast around the outermost model.
    """
    served = model.get_input_embeddings().weight.dtype

    def linear(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        bias = None if layer.bias is None else layer.bias.float()
        return torch.nn.functional.linear(x.float(), layer.weight.to(served).float(), bias)

    with contextlib.ExitStack() as back:
        back.enter_context(torch.no_grad())
        back.enter_context(torch.autocast(model.device.type, enabled=False))
        back.callback(
            model.get_input_embeddings().register_forward_hook(lambda *call: call[2].float()).remove
        )
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                back.enter_context(forward_as(layer, partial(linear, layer)))
        yield


def chosen_logps(
    head: torch.nn.Module, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Return [rows, choices] logprobs in nats of `tokens` under softmax(head(hidden) /
    temperature), in float32.

    `hidden` is [rows, width], what the model's output head reads; `tokens` are [rows, choices] ids.
    """
    if len(hidden) <= CHUNK:
        return _logps(head, hidden, tokens, temperature)
    chunks = zip(hidden.split(CHUNK), tokens.split(CHUNK), strict=True)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    return torch.cat([checkpoint(_logps, head, *chunk, temperature, **options) for chunk in chunks])


def computes_logits(model: Any) -> str | None:
    """Return why the model's logits are not what its head alone computes (a scale, a soft cap);
    None: they are.

    The model needs whole weights (not ZeRO-3's).
    """
    head, ids = model.get_output_embeddings(), torch.arange(8, device=model.device)[None]
    own, was_training = head.forward, model.training
    model.eval()
    try:
        with torch.no_grad():
            with handing_out(head):
                hidden = model(input_ids=ids, use_cache=False).logits
            # Large, for a soft cap is seen in large logits alone.
            large = 100 * hidden / hidden.abs().max()
            with forward_as(head, lambda _: own(large)):
                theirs = model(input_ids=ids, use_cache=False).logits.float()
            ours = _logits(head, large)
    finally:
        model.train(was_training)
    gap = float((ours - theirs).abs().max() / ours.abs().max())
    allowed = largest_gap(hidden.dtype)
    return (
        None
        if gap <= allowed
        else f"they differ by {gap:.2g} of the largest from its output head's, allowed {allowed}"
    )


def _logits(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    weights = {name: value.float() for name, value in head.named_parameters()}
    with torch.autocast(hidden.device.type, enabled=False):
        logits: torch.Tensor = torch.func.functional_call(head, weights, (hidden.float(),))
    return logits


def _logps(
    head: torch.nn.Module, hidden: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> torch.Tensor:
    logits = _logits(head, hidden)
    if temperature != 1:
        logits = logits / temperature
    return logits.gather(-1, tokens) - logits.logsumexp(-1, keepdim=True)
