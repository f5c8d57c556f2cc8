"""The forward pass of a micro-batch, computed where the loss reads it.

A sequence is a whole game of one player, and most of its tokens are prompts, which carry no loss. All of them are
context of the replies; but behind the last layer's attention no token looks at another, so what is left of the model is
computed at the tokens that a reply token is predicted from: the output head always, whose logits are the largest
tensors of a real model, and, without gradient checkpointing, the last layer's output projection and feed-forward part,
a noticeable share of a small model. `tests/conformance/test_forward_seams.py` holds values and gradients equal to
those of ms-swift's own pass.

Sequences are padded on the right, where causal attention never looks, so no mask is handed on and the attention kernel
may use its causal shortcut.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftModel
from trl.trainer.utils import selective_log_softmax


def reply_logps(
    model: torch.nn.Module, unwrapped: PeftModel, ids: torch.Tensor, mask: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return [rows, tokens - 1] logprobs of the tokens in `mask`, in nats; 0 at all others.

    Args:
        model: What is called: the model, or DDP's or DeepSpeed's wrapper of it.
        unwrapped: The model itself; its active adapter is used.
        ids: [rows, tokens] token ids, padded on the right.
        mask: [rows, tokens - 1], True where the token at the next position is a reply's.
        temperature: That the replies were sampled at.
    """
    positions = torch.nn.functional.pad(mask, (0, 1))
    with _only_at(unwrapped, positions):
        logits = model(input_ids=ids, use_cache=False).logits
    if temperature != 1:
        logits = logits / temperature
    found = selective_log_softmax(logits, ids[:, 1:][mask][None])[0]
    return torch.zeros(mask.shape, dtype=found.dtype, device=found.device).masked_scatter(mask, found)


@contextlib.contextmanager
def _only_at(model: PeftModel, positions: torch.Tensor) -> Iterator[None]:
    """Let the output head, and what works token by token before it, see only [rows, tokens] `positions`."""

    def select(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = inputs
        return (hidden[positions][None], *others)

    def put_back(_: Any, __: Any, output: Any) -> Any:
        # A mixture of experts returns more than one tensor.
        several = isinstance(output, tuple)
        hidden = output[0] if several else output
        whole = hidden.new_zeros((*positions.shape, hidden.shape[-1])).masked_scatter(positions[..., None], hidden)
        return (whole, *output[1:]) if several else whole

    with contextlib.ExitStack() as hooks:
        for module in _token_wise(model):
            hooks.callback(module.register_forward_pre_hook(select).remove)
            hooks.callback(module.register_forward_hook(put_back).remove)
        hooks.callback(model.get_output_embeddings().register_forward_pre_hook(select).remove)
        yield


def _token_wise(model: PeftModel) -> list[torch.nn.Module]:
    base = model.get_base_model()
    # Checkpointed layers run again in the backward pass, where these hooks are gone.
    if base.is_gradient_checkpointing:
        return []
    layers = getattr(base.get_decoder(), "layers", None)
    last = dict(layers[-1].named_modules()) if layers else {}
    return [last[name] for name in ("self_attn.o_proj", "mlp") if name in last]
