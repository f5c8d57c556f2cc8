"""The last steps of a language model, computed only at the tokens that a loss reads.

All tokens of a conversation are context of its replies; but behind the last layer's attention no token looks at
another, so what is left of the model is computed at the tokens that a reply token is predicted from: the output head
always, whose logits are the largest tensors of a real model, and, without gradient checkpointing, the last layer's
output projection and feed-forward part, a noticeable share of a small model.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def only_at(model: Any, positions: torch.Tensor) -> Iterator[None]:
    """Let the output head, and what works token by token before it, see only [rows, tokens] `positions`.

    Args:
        model: A transformers causal language model, or PEFT's wrapper of it.
        positions: Tokens that the next one is predicted at.
    """

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
        for module in token_wise(model):
            hooks.callback(module.register_forward_pre_hook(select).remove)
            hooks.callback(module.register_forward_hook(put_back).remove)
        hooks.callback(model.get_output_embeddings().register_forward_pre_hook(select).remove)
        yield


def token_wise(model: Any) -> list[torch.nn.Module]:
    """Return the parts of the last layer behind its attention; none under gradient checkpointing."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # Checkpointed layers run again in the backward pass, where these hooks are gone.
    if base.is_gradient_checkpointing:
        return []
    layers = getattr(base.get_decoder(), "layers", None)
    last = dict(layers[-1].named_modules()) if layers else {}
    return [last[name] for name in ("self_attn.o_proj", "mlp") if name in last]
