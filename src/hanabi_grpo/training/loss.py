"""What is optimised: the loss of one player's micro-batch, from advantages to a number.

    L = 1/N · Σ_t w_t · [ −min(ρ_t A_t, clip(ρ_t, 1 − ε_low, 1 + ε_high) A_t) + β (r_t − log r_t −
    1) ]

over the player's sampled tokens t; everything else in a sequence is masked out.

| symbol | is | from |
|---|---|---|
| A | advantage of the token's turn | `advantages`; `loss_unit` weighs it, `add_entropy_bonus` adds to it |
| ρ | π(a|s) / π_old(a|s), new policy over the one that sampled | PPO (arXiv 1707.06347), equations 6 and 7 |
| ε | how far ρ may go, with a width for each side | DAPO (arXiv 2503.14476), "Clip-Higher" |
| r | π_ref(a|s) / π(a|s), base model over new policy | GRPO (arXiv 2402.03300), equation 4 |
| w | π_old(a|s) / π_sampler(a|s), one version in two programs | truncated importance sampling (Yao et al. 2025) |
| N | the player's sampled tokens of the whole step, over all processes | DAPO, "Token-Level Policy Gradient Loss" |

π is this trainer's forward pass (`model.forward`) at the temperature of sampling. π_old is the same
pass before the step's first update, or with HANABI_OVERLAP=1 under the version that sampled
(`overlap`). π_sampler came with the tokens; `mismatch` has checked that both say the same. Under
HANABI_UPDATE=sequential A is also multiplied by a weight of the game (`updates`).

ms-swift computes the same with `loss_type=dapo`; `tests/conformance/test_loss.py` holds both equal,
bit by bit."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from hanabi_grpo.settings import Settings
from hanabi_grpo.training.batching import PlayerBatch
from hanabi_grpo.types import Episode, is_trained

_LARGEST_LOG = 20.0
"""Largest |log ratio| that is taken to a power: e^20 is 5e8, and a number that is not finite would
spoil a step.
"""
_LARGEST_KL = 10.0
_SMALLEST_RATIO = 1e-10
LOSS_METRICS: dict[str, dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "low": {"clip_ratio/low_mean": torch.mean, "clip_ratio/low_min": torch.min},
    "high": {"clip_ratio/high_mean": torch.mean, "clip_ratio/high_max": torch.max},
    "region": {"clip_ratio/region_mean": torch.mean},
    "kl": {"kl": torch.nanmean},
}
"""Names in metrics.jsonl of what `PolicyLoss` measures, and how the values of all processes become
one.
"""


class PolicyLoss:
    """The clipped loss of a run, as its settings choose it."""

    def __init__(self, settings: Settings) -> None:
        """Take HANABI_CLIP_*, BETA and HANABI_SAMPLER_CORRECTION*."""
        self.clip_low, self.clip_high = settings.clip_low, settings.clip_high
        self.beta = settings.beta
        self.correction, self.correction_limit = (
            settings.sampler_correction,
            settings.sampler_correction_limit,
        )

    def __call__(
        self, logps: torch.Tensor, batch: PlayerBatch, num_processes: int = 1
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss, and what is measured along the way.

        Args:
            logps: [rows, tokens] log π of the batch's tokens, in nats, with a gradient.
            batch: Mask, advantages, and the logprobs of the other policies, [rows, tokens] each.
            num_processes: Their gradients are averaged, so each divides by its share of N.

        Returns: A number whose sum over an update's micro-batches is the player's loss, and means
            over sampled tokens: the shares "low", "high" and "region" that the clip stops, and "kl"
            in nats.
        """
        mask, advantages = batch.completion_mask, batch.advantages
        old = logps.detach() if batch.old_per_token_logps is None else batch.old_per_token_logps

        # ρ, and −min(ρ A, clip(ρ) A)
        ratio = torch.exp(logps - old)
        clipped = torch.clamp(ratio, 1 - self.clip_low, 1 + self.clip_high)
        token_loss = -torch.min(ratio * advantages, clipped * advantages)
        low = (ratio < 1 - self.clip_low) & (advantages < 0)
        high = (ratio > 1 + self.clip_high) & (advantages > 0)
        measured = {"low": low, "high": high, "region": low | high}

        # + β (r − log r − 1)
        if self.beta:
            measured["kl"] = kl_estimate(logps, batch.ref_per_token_logps)
            token_loss = token_loss + self.beta * measured["kl"]

        # · w
        if self.correction != "none":
            token_loss = token_loss * self.sampler_weights(old, batch)

        # 1/N Σ over sampled tokens
        loss = (token_loss * mask).sum() / (batch.num_items_in_batch / num_processes)
        num_tokens = mask.sum().clamp(min=1.0)
        return loss, {
            name: (value.detach().float() * mask).sum() / num_tokens
            for name, value in measured.items()
        }

    def sampler_weights(self, old: torch.Tensor, batch: PlayerBatch) -> torch.Tensor:
        """Return [rows, tokens] weights π_old / π_sampler, limited; only with a `correction`.

        With `truncate` a weight above the limit becomes the limit, with `mask` 0. What is compared
        with the limit is a token's own ratio, or with `sequence` the geometric mean over the
        sequence's sampled tokens; `sequence_mask` leaves a sequence that it keeps the tokens' own
        weights.

        Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
        Training"; for sequences
        Liu et al. 2025, "When Speed Kills Stability".
        """
        log_ratio = torch.clamp(
            old - batch.rollout_per_token_logps, min=-_LARGEST_LOG, max=_LARGEST_LOG
        )
        ratio = compared = torch.exp(log_ratio)
        if self.correction.startswith("sequence"):
            mask, logs = batch.completion_mask, torch.log(ratio.clamp(min=_SMALLEST_RATIO))
            mean = (logs * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)
            compared = torch.exp(mean).unsqueeze(-1).expand_as(ratio)
        if self.correction.endswith("truncate"):
            return torch.clamp(compared, max=self.correction_limit)
        return torch.where(compared > self.correction_limit, 0.0, ratio)


def kl_estimate(logps: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return r − log r − 1 with r = π_ref / π: the estimator k3 of KL(π ‖ π_ref), never below 0.

    Source: Schulman, "Approximating KL divergence", 2020; GRPO (arXiv 2402.03300), equation 4.
    """
    log_ratio = torch.clamp(reference - logps, min=-_LARGEST_LOG, max=_LARGEST_LOG)
    return torch.clamp(torch.exp(log_ratio) - log_ratio - 1, min=-_LARGEST_KL, max=_LARGEST_KL)


def add_entropy_bonus(
    batches: Iterable[dict[str, Any]],
    weight: float,
    groups: Sequence[Sequence[Episode]],
    trained: Sequence[str],
    players: Sequence[str],
    target: float | None = None,
) -> None:
    """Add HANABI_ENTROPY_BONUS, c, to the advantages of a step's micro-batches: −c (log π(a) −
    mean) on sampled tokens.

    It is a score-function estimator: a term f added to the advantage of a token a, sampled from π
    in the state s, moves the weights by E[f ∇log π(a|s)], here by c ∇H(π(·|s)). The mean over a
    player's tokens of the step changes no expectation and lowers the variance. The term is weighted
    per token, whatever HANABI_LOSS_UNIT says of the rewards and HANABI_UPDATE=sequential of the
    game.

    With a `target`, in nats a token, c is the bonus times 1 − H / target for a player whose entropy
    H in the step's games is below it, and 0 above: a constant bonus either fades beside the rewards
    or drives a player to noise.

    `groups` are the games of the step on all ranks, `trained` the words of the seats that are
    trained in it, `players` who of the run sits there.

    Source: Williams and Peng 1991; bonus below a target: Skywork-OR1 (arXiv 2505.22312), whose
    weight moves by steps.
    """
    episodes, means = [episode for group in groups for episode in group], {}
    for seat, player in enumerate(players):
        turns = [
            turn
            for one in episodes
            if is_trained(one, seat, trained)
            for turn in one.trajectory(seat)
        ]
        values = [value for turn in turns for value in turn.logprobs]
        means[player] = sum(values) / len(values) if values else 0.0
    for data in (batch["grpo_batch"] for batch in batches):
        surprise = data.rollout_per_token_logps - means[data.player]
        entropy = -means[data.player]
        own = (
            weight
            if target is None
            else weight * (1 - entropy / target if entropy < target else 0.0)
        )
        data.shaping = torch.where(data.completion_mask, -own * surprise, 0.0)
        data.advantages = data.advantages + data.shaping
