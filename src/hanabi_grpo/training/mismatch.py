"""The logprob-mismatch check: proof, in every step, that the policy that sampled is the policy that is trained.

The trainer's values come from the forward pass that the loss needs anyway; games of an earlier version need one more,
under its weights (`overlap`). It runs before the optimizer.
"""

import math

import torch

from hanabi_grpo.errors import ParityError


def check_mismatch(
    player: str, version: int, trainer: torch.Tensor, sampler: torch.Tensor, mask: torch.Tensor, *, tolerance: float
) -> float:
    """Return the mean |trainer − sampler| in nats over a micro-batch's sampled tokens (`mask`); [batch, tokens] each.

    It is not a number when the trainer's own forward pass is not: its gradient is then not finite either, and the
    update is dropped there.

    Raises:
        ParityError: It is above the tolerance.
    """
    if not bool(mask.any()):
        return 0.0
    gap = (trainer.detach().float() - sampler)[mask].abs()
    mean = gap.mean().item()
    if not bool(trainer.detach()[mask].isfinite().all()):
        return math.nan
    if not math.isfinite(mean) or mean > tolerance:
        raise ParityError(
            f"{player}@{version}: trainer and sampler logprobs differ by {mean:.3g} on average "
            f"(max {gap.max().item():.3g}) over {gap.numel()} tokens; allowed is HANABI_PARITY_TOLERANCE="
            f"{tolerance:g}. Trainer mean {trainer.detach()[mask].mean().item():.4f}, sampler mean "
            f"{sampler[mask].mean().item():.4f}. The server samples from another policy than the one trained here (a "
            "stale or swapped adapter, another base model or number format). Nothing was updated in this step; restart "
            "the server, then the trainer."
        )
    return mean
