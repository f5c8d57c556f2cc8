"""The forward pass of a micro-batch, computed where the loss reads it.

A sequence is a whole game of one player, and most of its tokens are prompts, which carry no loss: see
`hanabi_grpo.token_wise`. `tests/conformance/test_forward_seams.py` holds values and gradients equal to those of
ms-swift's own pass.

Sequences are padded on the right, where causal attention never looks, so no mask is handed on and the attention kernel
may use its causal shortcut.
"""

import torch
from peft import PeftModel
from trl.trainer.utils import selective_log_softmax

from hanabi_grpo.token_wise import only_at


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
    with only_at(unwrapped, positions):
        logits = model(input_ids=ids, use_cache=False).logits
    if temperature != 1:
        logits = logits / temperature
    found = selective_log_softmax(logits, ids[:, 1:][mask][None])[0]
    return torch.zeros(mask.shape, dtype=found.dtype, device=found.device).masked_scatter(mask, found)
