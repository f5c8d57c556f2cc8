"""The logprob-mismatch check: proof, in every step, that the policy that sampled is the policy that is trained."""

import math
from dataclasses import dataclass

import torch

from hanabi_grpo.errors import ParityError


@dataclass(frozen=True, slots=True)
class MismatchCheck:
    """Compares trainer and sampler logprobs per player and stops training when they differ.

    The trainer's values come from the forward pass that the loss needs anyway, so every sampled token is compared at no
    cost; games of an earlier version need one more pass, under its weights (`overlap`). It runs before the optimizer.
    """

    tolerance: float
    """Largest mean |trainer − sampler| over a micro-batch's tokens, in nats."""

    def check(
        self, player: str, version: int, trainer: torch.Tensor, sampler: torch.Tensor, mask: torch.Tensor
    ) -> float:
        """Compare the logprobs of one micro-batch, [batch, tokens] each, where `mask` says that a token was sampled.

        Returns:
            The mean absolute difference; not a number when the trainer's own forward pass is not. Its gradient is
            then not finite either, and the update is dropped there.

        Raises:
            ParityError: It is above the tolerance.
        """
        if not bool(mask.any()):
            return 0.0
        gap = (trainer.detach().float() - sampler)[mask].abs()
        mean = gap.mean().item()
        if not bool(trainer.detach()[mask].isfinite().all()):
            return math.nan
        if not math.isfinite(mean) or mean > self.tolerance:
            raise ParityError(
                f"{player}@{version}: trainer and sampler logprobs differ by {mean:.3g} on average "
                f"(max {gap.max().item():.3g}) over {gap.numel()} tokens; allowed is HANABI_PARITY_TOLERANCE="
                f"{self.tolerance:g}. Trainer mean {trainer.detach()[mask].mean().item():.4f}, sampler mean "
                f"{sampler[mask].mean().item():.4f}. The server samples from another policy than the one trained "
                "here (a stale or swapped adapter, another base model or number format). Nothing was updated in this "
                "step; restart the server, then the trainer."
            )
        return mean
